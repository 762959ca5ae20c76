#!lua flags=allow-oom
-- Forgets idempotency keys of events created before a time, the oldest first in each conversation.
-- Event times never go back within a conversation (design section 5), so its keys go in the order
-- of its rows, and the index needs one member a conversation instead of one a key.
-- KEYS: 1 conversations by the age of their oldest idempotency key
-- ARGV: 1 before_ms, 2 how many keys may go, prefixes of: 3 heads, 4 rows, 5 idempotency keys
local idempotency_age = KEYS[1]
local before_ms, limit, heads, all_rows, all_keys = unpack(ARGV)
local PAGE = 256
limit = tonumber(limit)
local gone = 0

-- Drops keys of one conversation; the time of the oldest one that stays, nil if none does.
local function forget(name)
  local rows, head = all_rows .. name, heads .. name
  local through = redis.call('HGET', head, 'forgotten_through')
  local oldest_ms
  repeat
    local page = redis.call('XRANGE', rows, '(' .. through .. '-0', '+', 'COUNT', PAGE)
    for _, entry in ipairs(page) do
      local row = entry[2]
      if row[IDEMPOTENCY] ~= '' then
        if gone == limit or tonumber(row[CREATED_AT_MS]) >= tonumber(before_ms) then
          oldest_ms = row[CREATED_AT_MS]
          break
        end
        gone = gone + redis.call('HDEL', all_keys .. name, row[IDEMPOTENCY])
      end
      through = seq_of(entry)
    end
  until oldest_ms or #page < PAGE
  redis.call('HSET', head, 'forgotten_through', through)
  return oldest_ms
end

for _, name in ipairs(redis.call('ZRANGEBYSCORE', idempotency_age, '-inf', '(' .. before_ms,
  'LIMIT', 0, limit)) do
  if gone == limit then
    break
  end
  local oldest_ms = forget(name)
  if oldest_ms then
    redis.call('ZADD', idempotency_age, oldest_ms, name)
  else
    redis.call('ZREM', idempotency_age, name)
  end
end
return {'applied', gone}
