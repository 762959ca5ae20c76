#!lua
-- Puts rows of a rebuild in their places: see `ports.projection.RestoreStep`. Each is six
-- arguments: user, conversation, activity, applied_seq, unread, read mark. Answers the places, from
-- 0, of those whose read mark is another.

local partition, term = ARGV[2], ARGV[3]
local refusal = refused(partition, term)
if refusal then return refusal end
local others = {}
for at = 4, #ARGV, 6 do
  local user, conversation, activity, applied, unread, mark = unpack(ARGV, at, at + 5)
  if mark_of(user, conversation) ~= tonumber(mark) then
    others[#others + 1] = (at - 4) / 6
  elseif (row_of(user, conversation) or 0) <= tonumber(applied) then
    put_row(user, conversation, tonumber(applied), tonumber(unread))
    redis.call('ZADD', prefix .. 'convs:' .. user, activity, conversation)
  end
end
return {'applied', others}
