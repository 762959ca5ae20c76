#!lua flags=no-writes
-- Two sized texts for each event of a range: conversation_seq, event_id.
-- KEYS: 1 rows. ARGV: 1 first, 2 last seq
local found = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[2])) do
  add_sized(found, seq_of(entry))
  add_sized(found, entry[2][EVENT_ID])
end
return table.concat(found)
