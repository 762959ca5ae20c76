#!lua
-- Makes a term the partition's; a missing checkpoint begins as the given one. Answers the stored
-- one.

local partition, term, meta, next_offset = unpack(ARGV, 2)
local key = partition_key(partition)
local stored = redis.call('HGET', key, 'term')
if stored and tonumber(stored) > tonumber(term) then
  return {'stale_epoch', "the partition's term is not the caller's"}
end
if not stored then
  redis.call('HSET', key, 'meta', meta, 'next_offset', next_offset)
end
redis.call('HSET', key, 'term', term)
return {'applied', unpack(redis.call('HMGET', key, 'meta', 'next_offset'))}
