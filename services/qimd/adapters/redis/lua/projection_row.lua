#!lua flags=no-writes
-- A row: activity, applied_seq, unread, read mark, in text; nothing if there is none.

local user, conversation = ARGV[2], ARGV[3]
local applied, unread = row_of(user, conversation)
if not applied then return false end
local activity = redis.call('ZSCORE', prefix .. 'convs:' .. user, conversation)
return {activity, text(applied), text(unread), text(mark_of(user, conversation))}
