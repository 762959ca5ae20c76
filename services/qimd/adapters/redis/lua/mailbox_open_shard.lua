#!lua flags=allow-oom
-- Makes a term the shard's; a new shard begins at its first boundary.
-- It runs where there is no memory left: only a shard's owner can expire what takes it.

local shard, term, boundary, next_offset, position, floor, lane_last = unpack(ARGV, 2)
local key = shard_key('shard', shard)
local stored = redis.call('HGET', key, 'term')
if stored and tonumber(stored) > tonumber(term) then return STALE_TERM end
if stored then
  redis.call('HSET', key, 'term', term)
else
  redis.call(
    'HSET', key, 'term', term, 'next_offset', next_offset, 'position', position, 'lagging', '',
    'floor', floor, 'gone', floor, 'lane_last', lane_last, 'request_id', '', 'verdicts', '')
  redis.call('RPUSH', shard_key('epochs', shard), boundary)
end
return {'applied', state_of(shard)}
