#!lua flags=no-writes
-- Up to `limit` records of a shard above a seq: their seqs, and the records.

local shard, wanted_after, limit = unpack(ARGV, 2)
local after, left = larger(wanted_after, gone_of(shard)), tonumber(limit)
local seqs, records = {}, {}
for _, bucket in ipairs(redis.call('ZRANGE', shard_key('begun', shard), 0, -1)) do
  if left == 0 then break end
  local part = slice(bucket_key('seqs', bucket), after, LAST_SEQ, left)
  seqs[#seqs + 1] = part
  records[#records + 1] = records_at(bucket, part)
  left = left - #part / 8
end
return {table.concat(seqs), table.concat(records)}
