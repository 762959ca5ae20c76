#!lua flags=no-writes
-- What was committed under idempotency keys: five values for each one that exists, its index in
-- ARGV (from 0), event_id, conversation_seq, created_at_ms, content digest.
-- KEYS: 1 idempotency keys of the conversation, 2 rows. ARGV: the keys
local idempotency, rows = unpack(KEYS)
local found = {}
for index, key in ipairs(ARGV) do
  local seq = redis.call('HGET', idempotency, key)
  if seq then
    local row = redis.call('XRANGE', rows, seq, seq)[1][2]
    for _, value in ipairs({index - 1, row[EVENT_ID], seq, row[CREATED_AT_MS], row[DIGEST]}) do
      found[#found + 1] = value
    end
  end
end
return found
