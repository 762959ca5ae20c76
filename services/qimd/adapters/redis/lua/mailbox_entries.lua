#!lua flags=no-writes
-- A user's entries in (after, through], up to `limit` of each shard that the user has some in:
-- their seqs, and the records that they refer to.

local user, after, through, limit = unpack(ARGV, 2)
local seqs, records = {}, {}
local shard, from, left
for _, bucket in ipairs(redis.call('ZRANGE', prefix .. 'buckets:' .. user, 0, -1)) do
  local own = struct.unpack('>I4', bucket)
  if own ~= shard then
    shard, from, left = own, larger(after, gone_of(own)), tonumber(limit)
  end
  if left > 0 then
    local part = slice(bucket_key('entries', bucket) .. user, from, through, left)
    seqs[#seqs + 1] = part
    records[#records + 1] = records_at(bucket, part)
    left = left - #part / 8
  end
end
return {table.concat(seqs), table.concat(records)}
