#!lua flags=no-writes
-- A user's rows below (activity, conversation), the largest first, up to `limit`: as JSON, each
-- [conversation, activity, applied_seq, unread, read mark] in text.

local user, activity, conversation, limit = unpack(ARGV, 2)
limit = tonumber(limit)

-- Whether `a` comes before `b` in the order of their bytes, which is that of a zset's members.
local function before(a, b)
  for at = 1, math.min(#a, #b) do
    if a:byte(at) ~= b:byte(at) then return a:byte(at) < b:byte(at) end
  end
  return #a < #b
end

local rows, skipped = {}, 0
while #rows < limit do
  local wanted = limit - #rows
  local found = redis.call(
    'ZRANGE', prefix .. 'convs:' .. user, activity, '-inf', 'BYSCORE', 'REV',
    'LIMIT', skipped, wanted, 'WITHSCORES')
  for at = 1, #found, 2 do
    local name, time = found[at], found[at + 1]
    if time ~= activity or before(name, conversation) then
      local applied, unread = row_of(user, name)
      rows[#rows + 1] = {name, time, text(applied), text(unread), text(mark_of(user, name))}
    end
  end
  skipped = skipped + wanted
  if #found < wanted * 2 then break end
end
return cjson.encode(rows)
