#!lua
-- Creates a tenant, or gives the one that is there with the very same keys.
-- KEYS: 1 the tenant. ARGV: 1 created_at_ms, then id and key of each of its keys
local stored = redis.call('HGETALL', KEYS[1])
local wanted = {}
for at = 2, #ARGV, 2 do
  wanted['key:' .. ARGV[at]] = ARGV[at + 1]
end
if #stored == 0 then
  redis.call('HSET', KEYS[1], 'created_at_ms', ARGV[1])
  for field, key in pairs(wanted) do
    redis.call('HSET', KEYS[1], field, key)
  end
  return {'applied', redis.call('HGETALL', KEYS[1])}
end
for at = 1, #stored, 2 do
  local field, value = stored[at], stored[at + 1]
  if field ~= 'created_at_ms' then
    if wanted[field] ~= value then
      return {'conflict', 'the tenant exists with other keys'}
    end
    wanted[field] = nil
  end
end
if next(wanted) then
  return {'conflict', 'the tenant exists with other keys'}
end
return {'applied', stored}
