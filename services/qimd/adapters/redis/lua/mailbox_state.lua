-- A shard's state, as all steps and reads of it answer.

local function state_of(shard)
  local state = redis.call(
    'HMGET', shard_key('shard', shard),
    'term', 'next_offset', 'position', 'lagging', 'floor', 'lane_last')
  state[7] = redis.call('LRANGE', shard_key('epochs', shard), 0, -1)
  state[8] = table.concat(redis.call('LRANGE', shard_key('days', shard), 0, -1))
  return state
end
