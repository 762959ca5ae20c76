#!lua flags=no-writes
-- How many messages by others are in some ranges.
-- KEYS: 1 rows. ARGV: 1 the reader, then first and last seq of each range
local rows, reader = KEYS[1], ARGV[1]
local MESSAGE = '1' -- core.records.EventKind
local PAGE = 1000
local unread = 0
for at = 2, #ARGV, 2 do
  local from = ARGV[at]
  repeat
    local page = redis.call('XRANGE', rows, from, ARGV[at + 1], 'COUNT', PAGE)
    for _, entry in ipairs(page) do
      if entry[2][KIND] == MESSAGE and entry[2][SENDER] ~= reader then
        unread = unread + 1
      end
      from = '(' .. entry[1]
    end
  until #page < PAGE
end
return unread
