#!lua flags=allow-oom
-- Forgets dispatches that were not seen above a seq, by a look at up to `limit` places where one
-- was. Answers how many went, and 1 if there may be more.

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

local forgotten, left = 0, tonumber(limit)

-- A dispatch that was seen again later goes with that place.
local function forget(dispatch)
  local key = progress_key(shard, dispatch)
  local stored = redis.call('HGET', key, dispatch)
  if stored and not below(bound, stored:sub(25)) then
    redis.call('HDEL', key, dispatch)
    forgotten = forgotten + 1
  end
end

-- Of places, up to the first one above the bound.
local function look_at(places)
  local looked = 0
  for _, one in ipairs(redis.call('LRANGE', places, 0, left - 1)) do
    if below(bound, one:sub(1, 8)) then break end
    forget(one:sub(9))
    looked = looked + 1
  end
  redis.call('LTRIM', places, looked, -1)
  left = left - looked
end

look_at(shard_key('seen', shard))
if left > 0 then look_at(shard_key('seen_again', shard)) end
return {'applied', forgotten, left == 0 and 1 or 0}
