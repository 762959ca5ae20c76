#!lua
-- Commits k events: checkpoint 1 of the fence is here (design section 5, ports.store.CommitStep).
-- KEYS: 1 epochs, 2 head, 3 rows, 4 bodies, 5 members, 6 idempotency keys of the conversation,
--       7 senders of its messages (a string, four bytes an event: the number of the sender of a
--       message, 0 for what is none; so unread ones are counted by a look at it), 8 the numbers of
--       senders, 9 conversations by the age of their oldest idempotency key
-- ARGV: 1 writer shard, 2 epoch, 3 request id, 4 expected head, 5 the conversation's name among the
--       pending ones and in `places`, 6 prefix of the pending ones' keys, 7 prefix of `places`, then
--       nine values an event: conversation_seq, kind, sender ('' for none), created_at_ms, event_id,
--       idempotency key ('' for none), content digest, row (JSON), encoded
local epochs, head, rows, bodies, members, idempotency, senders, numbers, idempotency_age =
  unpack(KEYS)
local writer_shard, epoch, request_id, expected_head, name, pending, places = unpack(ARGV)
local FIRST, SIZE = 8, 9
local MESSAGE, MEMBERSHIP = '1', '3' -- core.records.EventKind
local ADDED, REMOVED = 9, 10 -- where they are in a row

local fencing_epoch, head_version, last_request, shard_before, member_count, membership_version =
  unpack(redis.call('HMGET', head, 'fencing_epoch', 'head_version', 'last_request', 'writer_shard',
    'member_count', 'membership_version'))
if not fencing_epoch then
  return NO_CONVERSATION
end
if last_request == request_id then
  return {'applied', state_of(head)}
end
if shard_is_stale(epochs, writer_shard, epoch) then
  return STALE_SHARD
end
if tonumber(fencing_epoch) > tonumber(epoch) then
  return STALE_HEAD
end
if head_version ~= expected_head then
  return {'head_moved', 'the head is at ' .. head_version}
end
local keys_of_step = {}
for at = FIRST, #ARGV, SIZE do
  local key = ARGV[at + 5]
  if key ~= '' then
    if keys_of_step[key] or redis.call('HEXISTS', idempotency, key) == 1 then
      return {'duplicate', 'an idempotency key exists'}
    end
    keys_of_step[key] = true
  end
end

-- Nothing below refuses.

-- Who is (or is not) a member already stays so.
local function change_members(row, seq)
  local digits = string.rep('0', DIGITS - #seq) .. seq
  for _, user in ipairs(row[ADDED]) do
    if not open_interval(members, user) then
      redis.call('ZADD', members, 0, user .. '\0' .. digits .. OPEN)
      member_count = member_count + 1
    end
  end
  for _, user in ipairs(row[REMOVED]) do
    local open = open_interval(members, user)
    if open then
      redis.call('ZREM', members, open)
      redis.call('ZADD', members, 0, string.sub(open, 1, -DIGITS - 1) .. digits)
      member_count = member_count - 1
    end
  end
end

local function number_of(sender)
  local number = redis.call('HGET', numbers, sender)
  if not number then
    number = redis.call('HLEN', numbers) + 1
    redis.call('HSET', numbers, sender, number)
  end
  return number
end

local oldest_key_ms, last_created_at_ms
for at = FIRST, #ARGV, SIZE do
  local seq, kind, sender, created_at_ms, event_id, key, digest, row, encoded =
    unpack(ARGV, at, at + SIZE - 1)
  redis.call('XADD', rows, seq .. '-0', 'event_id', event_id, 'created_at_ms', created_at_ms,
    'idempotency', key, 'digest', digest, 'row', row)
  redis.call('XADD', bodies, seq .. '-0', 'event_id', event_id, 'encoded', encoded)
  redis.call('APPEND', senders, struct.pack('<I4', kind == MESSAGE and number_of(sender) or 0))
  redis.call('HSET', places .. string.sub(event_id, 1, 2), event_id,
    name .. struct.pack('>I4', #seq) .. seq)
  if key ~= '' then
    redis.call('HSET', idempotency, key, seq)
    oldest_key_ms = oldest_key_ms or created_at_ms
  end
  if kind == MEMBERSHIP then
    change_members(cjson.decode(row), seq)
    membership_version = seq
  end
  head_version, last_created_at_ms = seq, created_at_ms
end
redis.call('HSET', head, 'fencing_epoch', epoch, 'head_version', head_version,
  'membership_version', membership_version, 'member_count', member_count,
  'last_created_at_ms', last_created_at_ms, 'last_request', request_id,
  'writer_shard', writer_shard)
if shard_before ~= writer_shard then
  redis.call('SREM', pending .. shard_before, name)
end
redis.call('SADD', pending .. writer_shard, name)
if oldest_key_ms then
  redis.call('ZADD', idempotency_age, 'NX', oldest_key_ms, name)
end
return {'applied', state_of(head)}
