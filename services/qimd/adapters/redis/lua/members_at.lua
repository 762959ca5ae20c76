#!lua flags=no-writes
-- A page of the members right after an event: where the next page begins ('' on the last), and the
-- users, a line each (ids hold no control characters).
-- KEYS: 1 members. ARGV: 1 where it begins, 2 how many intervals it looks at, 3 conversation_seq
local members = KEYS[1]
local from, limit, seq = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local page = redis.call('ZRANGEBYLEX', members, from, '+', 'LIMIT', 0, limit)
local users = {}
for _, interval in ipairs(page) do
  if tonumber(added_in(interval)) <= seq then
    local removed = removed_in(interval)
    if removed == OPEN or seq < tonumber(removed) then
      users[#users + 1] = user_in(interval)
    end
  end
end
return {#page == limit and '(' .. page[limit] or '', table.concat(users, '\n')}
