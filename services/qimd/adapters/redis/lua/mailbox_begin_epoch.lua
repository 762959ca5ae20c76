#!lua
-- Appends a boundary, and has the shard stand before its first record.

local shard, term, boundary, next_offset, position = unpack(ARGV, 2)
local refusal = refused(shard, term)
if refusal then return refusal end
local last = redis.call('LINDEX', shard_key('epochs', shard), -1)
if boundary ~= last then
  local last_epoch = struct.unpack('>I4', last)
  if struct.unpack('>I4', boundary) ~= last_epoch + 1 then
    return {'conflict', 'the last shard_epoch is ' .. last_epoch}
  end
  redis.call('RPUSH', shard_key('epochs', shard), boundary)
  redis.call(
    'HSET', shard_key('shard', shard),
    'next_offset', next_offset, 'position', position, 'lagging', '')
end
return {'applied', state_of(shard)}
