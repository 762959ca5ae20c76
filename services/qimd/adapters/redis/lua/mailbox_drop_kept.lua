#!lua flags=allow-oom
-- Drops up to `limit` kept records at or below a seq; how many went.

local shard, term, through, limit = unpack(ARGV, 2)
local refusal = refused(shard, term)
if refusal then return refusal end
local order = shard_key('kept_order', shard)
local seqs = redis.call('ZRANGE', order, '-', '[' .. through, 'BYLEX', 'LIMIT', 0, limit)
for _, seq in ipairs(seqs) do
  redis.call('HDEL', shard_key('kept', shard), seq)
  redis.call('ZREM', order, seq)
end
return {'applied', #seqs}
