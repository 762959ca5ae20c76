#!lua flags=no-writes
-- The read mark of each place; a place is two arguments, user and conversation.

local marks = {}
for at = 2, #ARGV, 2 do
  marks[#marks + 1] = text(mark_of(ARGV[at], ARGV[at + 1]))
end
return table.concat(marks, ' ')
