#!lua flags=no-writes
-- Members now, two sized texts for each: user, added_seq.
-- KEYS: 1 members. ARGV: 1 the user above whom it begins, or '', 2 how many
local members, after, limit = KEYS[1], ARGV[1], tonumber(ARGV[2])
local PAGE = 1000
local from = after == '' and '-' or '(' .. after .. '\1'
local found = {}
local left = limit
while left > 0 do
  local page = redis.call('ZRANGEBYLEX', members, from, '+', 'LIMIT', 0, math.min(left, PAGE))
  if #page == 0 then
    break
  end
  for _, interval in ipairs(page) do
    if removed_in(interval) == OPEN then
      add_sized(found, user_in(interval))
      add_sized(found, added_in(interval))
      left = left - 1
    end
  end
  from = '(' .. page[#page]
end
return table.concat(found)
