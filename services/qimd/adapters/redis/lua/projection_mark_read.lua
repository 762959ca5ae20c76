#!lua
-- Raises a read mark and sets unread, if they were counted for the row as it is. Answers activity.

local user, conversation, mark, applied, unread = unpack(ARGV, 2)
local stored = row_of(user, conversation)
if not stored then return {'not_found', 'no such row'} end
if stored ~= tonumber(applied) then return {'head_moved', 'the row has newer events'} end
if mark_of(user, conversation) > tonumber(mark) then
  return {'head_moved', 'another device has read further'}
end
put_row(user, conversation, stored, tonumber(unread))
put_mark(user, conversation, tonumber(mark))
return {'applied', redis.call('ZSCORE', prefix .. 'convs:' .. user, conversation)}
