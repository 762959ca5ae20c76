#!lua flags=no-writes
-- The newest events of some ranges, five sized texts for each, the newest first:
-- conversation_seq, event_id, created_at_ms, row, encoded.
-- KEYS: 1 rows, 2 bodies. ARGV: 1 how many, then first and last seq of each range, the last first
local rows, bodies = unpack(KEYS)
local room = tonumber(ARGV[1])
local found = {}
for at = 2, #ARGV, 2 do
  if room <= 0 then
    break
  end
  local first, last = ARGV[at], ARGV[at + 1]
  local range = redis.call('XREVRANGE', rows, last, first, 'COUNT', room)
  local encoded = redis.call('XREVRANGE', bodies, last, first, 'COUNT', room)
  for number, entry in ipairs(range) do
    local row = entry[2]
    add_sized(found, seq_of(entry))
    add_sized(found, row[EVENT_ID])
    add_sized(found, row[CREATED_AT_MS])
    add_sized(found, row[ROW])
    add_sized(found, encoded[number][2][ENCODED])
  end
  room = room - #range
end
return table.concat(found)
