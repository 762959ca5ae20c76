#!lua
-- Adds a key to a tenant. KEYS: 1 the tenant. ARGV: 1 the key's id, 2 the key
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'not_found', 'no such tenant'}
end
local stored = redis.call('HGET', KEYS[1], 'key:' .. ARGV[1])
if stored and stored ~= ARGV[2] then
  return {'conflict', 'the key id exists with another key'}
end
redis.call('HSET', KEYS[1], 'key:' .. ARGV[1], ARGV[2])
return {'applied', redis.call('HGETALL', KEYS[1])}
