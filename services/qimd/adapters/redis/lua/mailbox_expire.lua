#!lua flags=allow-oom
-- Raises the floor, then drops the oldest records at or below it, up to `limit`, and, of the
-- buckets that have no record left, the entries of up to `users_max` users.
-- Answers how many records went, and 1 if there are users left to sweep.

local shard, term, wanted_floor, limit, users_max = unpack(ARGV, 2)
local refusal = refused(shard, term)
if refusal then return refusal end

local key = shard_key('shard', shard)
local begun = shard_key('begun', shard)
local floor = larger(redis.call('HGET', key, 'floor'), wanted_floor)
local gone = gone_of(shard)
redis.call('HSET', key, 'floor', floor)

-- An event's records are in many shards, and each takes its own away.
local function forget(event_id, place)
  local event = prefix .. 'event:' .. event_id
  local places = redis.call('GET', event)
  local kept = {}
  for at = 1, #places, 20 do
    local one = places:sub(at, at + 19)
    if one ~= place then kept[#kept + 1] = one end
  end
  if #kept == 0 then redis.call('DEL', event) else redis.call('SET', event, table.concat(kept)) end
end

local function drop(bucket, seqs)
  local records = bucket_key('records', bucket)
  for at = 1, #seqs, 8 do
    local seq = seqs:sub(at, at + 7)
    local record = redis.call('HGET', records, seq)
    forget(record:sub(1, 16), bucket .. seq)
    redis.call('RPUSH', shard_key('seen', shard), seq .. record:sub(17, 32))
    redis.call('HDEL', records, seq)
  end
  gone = seqs:sub(-8)
end

local dropped = 0
for _, bucket in ipairs(redis.call('ZRANGE', begun, 0, -1)) do
  if below(floor, bucket:sub(5)) then break end
  local seqs = slice(bucket_key('seqs', bucket), gone, floor, limit - dropped)
  if seqs ~= '' then
    drop(bucket, seqs)
    dropped = dropped + #seqs / 8
  end
  if redis.call('EXISTS', bucket_key('records', bucket)) == 0 then
    redis.call('DEL', bucket_key('seqs', bucket))
  end
end
-- Fewer than were asked for: there are no others.
if dropped < tonumber(limit) then gone = larger(gone, floor) end
redis.call('HSET', key, 'gone', gone)

-- The entries of up to `most` users of a bucket without records; how many it were.
local function sweep(bucket, most)
  local users = redis.call('LPOP', bucket_key('users', bucket), most) or {}
  for _, user in ipairs(users) do
    redis.call('DEL', bucket_key('entries', bucket) .. user)
    redis.call('ZREM', prefix .. 'buckets:' .. user, bucket)
  end
  if #users < most then redis.call('ZREM', begun, bucket) end
  return #users
end

local left = tonumber(users_max)
for _, bucket in ipairs(redis.call('ZRANGE', begun, 0, -1)) do
  if left == 0 or redis.call('EXISTS', bucket_key('seqs', bucket)) == 1 then break end
  left = left - sweep(bucket, left)
end
return {'applied', dropped, left == 0 and 1 or 0}
