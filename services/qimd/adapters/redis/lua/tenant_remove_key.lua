#!lua
-- Removes a key of a tenant, present or not. KEYS: 1 the tenant. ARGV: 1 the key's id
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'not_found', 'no such tenant'}
end
redis.call('HDEL', KEYS[1], 'key:' .. ARGV[1])
return {'applied', redis.call('HGETALL', KEYS[1])}
