-- Memberships are one sorted set a conversation, all scores 0, hence in byte order: a member for
-- each interval, <user> NUL <added_seq> <removed_seq>, both in 16 digits, removed_seq 0 while it is
-- open. Ids hold no NUL, so users come in their byte order, and a user's intervals oldest first.
local DIGITS = 16
local OPEN = string.rep('0', DIGITS)

local function user_in(interval)
  return string.sub(interval, 1, -2 * DIGITS - 2)
end

local function added_in(interval)
  return string.sub(interval, -2 * DIGITS, -DIGITS - 1)
end

local function removed_in(interval)
  return string.sub(interval, -DIGITS)
end

-- The user's open interval; nil if it is no member now.
local function open_interval(members, user)
  local last = redis.call('ZREVRANGEBYLEX', members, '(' .. user .. '\1', '[' .. user .. '\0',
    'LIMIT', 0, 1)[1]
  if last and removed_in(last) == OPEN then
    return last
  end
end
