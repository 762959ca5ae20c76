#!lua flags=no-writes
-- Two sized texts for each place: event_id and encoded, both empty where there is no event.
-- KEYS: the bodies of each place's conversation. ARGV: the conversation_seq of each
local found = {}
for number, bodies in ipairs(KEYS) do
  local entry = redis.call('XRANGE', bodies, ARGV[number], ARGV[number])[1]
  add_sized(found, entry and entry[2][BODY_EVENT_ID] or '')
  add_sized(found, entry and entry[2][ENCODED] or '')
end
return table.concat(found)
