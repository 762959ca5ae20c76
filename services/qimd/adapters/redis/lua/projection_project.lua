#!lua
-- Brings rows up to their events, then moves the checkpoint: see `ports.projection.ProjectStep`.
-- A part of a step that others follow moves it to where it is.
--
-- Each group is two arguments: the tenant's part of its users' keys, and as JSON the conversation,
-- its events ([seq, 1 for a message, sender or '', created_at]) and the users.

local partition, term, expected, next_offset = unpack(ARGV, 2, 5)
local GROUPS = 5  -- the arguments behind it

local refusal = refused(partition, term)
if refusal then return refusal end
if redis.call('HGET', partition_key(partition), 'next_offset') ~= expected then
  return {'head_moved', 'another owner moved the checkpoint'}
end

-- What all users of a group share.
local function read_group(json)
  local conversation, events, users = unpack(cjson.decode(json))
  local group = {
    conversation = conversation, events = events, users = users,
    first = events[1][1], last = events[#events][1],
    activity = 0, messages = {}, senders = {}}
  for _, event in ipairs(events) do
    local seq, is_message, sender, created_at = unpack(event)
    group.activity = math.max(group.activity, created_at)
    group.senders[sender] = true
    if is_message == 1 then group.messages[#group.messages + 1] = seq end
  end
  return group
end

-- Someone who sent none of the events: unread grows by the messages above what was applied, and
-- read.
local function unread_by(group, applied, mark)
  local bound = math.max(applied, mark)
  if bound < group.first then return #group.messages end
  local count = 0
  for _, seq in ipairs(group.messages) do
    if seq > bound then count = count + 1 end
  end
  return count
end

-- A sender: the order of the events decides.
local function fold(group, name, applied, unread, mark)
  for _, event in ipairs(group.events) do
    local seq, is_message, sender = unpack(event)
    if seq > applied then
      if sender == name then
        if unread == 0 then mark = math.max(mark, seq) end
      elseif is_message == 1 and seq > mark then
        unread = unread + 1
      end
    end
  end
  return unread, mark
end

local function project(group, tenant)
  local conversation, activity = group.conversation, text(group.activity)
  for _, name in ipairs(group.users) do
    local user = tenant .. name
    local applied, unread = row_of(user, conversation)
    applied, unread = applied or 0, unread or 0
    if applied < group.last then
      local mark = mark_of(user, conversation)
      if group.senders[name] then
        local read
        unread, read = fold(group, name, applied, unread, mark)
        if read > mark then put_mark(user, conversation, read) end
      else
        unread = unread + unread_by(group, applied, mark)
      end
      put_row(user, conversation, group.last, unread)
    end
    redis.call('ZADD', prefix .. 'convs:' .. user, 'GT', activity, conversation)
  end
end

for at = GROUPS + 1, #ARGV, 2 do
  project(read_group(ARGV[at + 1]), ARGV[at])
end
redis.call('HSET', partition_key(partition), 'next_offset', next_offset)
return {'applied'}
