#!lua flags=no-writes
-- Since when users are members: an added_seq for each, a line each, empty for who is none.
-- KEYS: 1 members. ARGV: the users
local since = {}
for number, user in ipairs(ARGV) do
  local open = open_interval(KEYS[1], user)
  since[number] = open and added_in(open) or ''
end
return table.concat(since, '\n')
