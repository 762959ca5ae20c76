#!lua flags=no-writes
-- Up to `limit` kept records above a seq: their seqs, and what is kept of each.

local shard, after, limit = unpack(ARGV, 2)
local seqs = redis.call(
  'ZRANGE', shard_key('kept_order', shard), '(' .. after, '+', 'BYLEX', 'LIMIT', 0, limit)
local kept = {}
for place, seq in ipairs(seqs) do
  kept[place] = redis.call('HGET', shard_key('kept', shard), seq)
end
return {table.concat(seqs), kept}
