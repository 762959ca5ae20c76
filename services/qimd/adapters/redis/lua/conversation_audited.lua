#!lua
-- Raises audited_through. KEYS: 1 head, 2 conversations to audit. ARGV: 1 through, 2 place in it
local head, to_audit = unpack(KEYS)
local through, place = unpack(ARGV)

local audited, dispatched = unpack(
  redis.call('HMGET', head, 'audited_through', 'dispatched_through'))
if not audited then
  return NO_CONVERSATION
end
if tonumber(through) > tonumber(audited) then
  redis.call('HSET', head, 'audited_through', through)
  if tonumber(through) >= tonumber(dispatched) then
    redis.call('ZREM', to_audit, place)
  end
end
return {'applied'}
