#!lua flags=allow-oom
-- Drops the progress of up to `limit` dispatches that were not seen above a seq; how many went.

local shard, term, through, limit = unpack(ARGV, 2)
local refusal = refused(shard, term)
if refusal then return refusal end

local function smaller(a, b)
  return below(b, a) and b or a
end

local position, lagging, floor = unpack(redis.call(
  'HMGET', shard_key('shard', shard), 'position', 'lagging', 'floor'))
local bound = smaller(smaller(through, smaller(floor, gone_of(shard))), position)
for at = 1, #lagging, 9 do
  bound = smaller(bound, lagging:sub(at + 1, at + 8))
end

local collected = 0

-- Drop a dispatch; one that was seen again later goes with that.
local function collect(dispatch)
  local key = progress_key(shard, dispatch)
  local stored = redis.call('HGET', key, dispatch)
  if stored and (#stored == 24 or not below(bound, stored:sub(25))) then
    redis.call('HDEL', key, dispatch)
    collected = collected + 1
  end
end

local seen = shard_key('seen', shard)
local looked = 0
for _, one in ipairs(redis.call('LRANGE', seen, 0, limit - 1)) do
  if below(bound, one:sub(1, 8)) then break end
  collect(one:sub(9))
  looked = looked + 1
end
redis.call('LTRIM', seen, looked, -1)

local again = shard_key('seen_again', shard)
local through_all = '[' .. bound .. string.rep('\255', 16)
for _, one in ipairs(redis.call(
  'ZRANGE', again, '-', through_all, 'BYLEX', 'LIMIT', 0, limit - looked)) do
  collect(one:sub(9))
  redis.call('ZREM', again, one)
end
return {'applied', collected}
