#!lua
-- Commits k events: checkpoint 1 of the fence is here (design section 5, ports.store.CommitStep).
-- KEYS: 1 epochs, 2 head, 3 rows, 4 bodies, 5 members, 6 idempotency keys of the conversation,
--       7 conversations by the age of their oldest idempotency key
-- ARGV: 1 writer shard, 2 epoch, 3 request id, 4 expected head, 5 the conversation's name among the
--       pending ones and in `places`, 6 prefix of the pending ones' keys, 7 prefix of `places`, then
--       nine values an event: conversation_seq, kind, sender ('' for none), created_at_ms, event_id,
--       idempotency key ('' for none), content digest, pins (JSON), encoded
local epochs, head, rows, bodies, members, idempotency, idempotency_age = unpack(KEYS)
local writer_shard, epoch, request_id, expected_head, name, pending, places = unpack(ARGV)
local FIRST, SIZE = 8, 9
local MEMBERSHIP = '3' -- core.records.EventKind

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
local function change_members(change, seq)
  local digits = string.rep('0', DIGITS - #seq) .. seq
  for _, user in ipairs(change.added) do
    if not open_interval(members, user) then
      redis.call('ZADD', members, 0, user .. '\0' .. digits .. OPEN)
      member_count = member_count + 1
    end
  end
  for _, user in ipairs(change.removed) do
    local open = open_interval(members, user)
    if open then
      redis.call('ZREM', members, open)
      redis.call('ZADD', members, 0, string.sub(open, 1, -DIGITS - 1) .. digits)
      member_count = member_count - 1
    end
  end
end

local oldest_key_ms, last_created_at_ms
for at = FIRST, #ARGV, SIZE do
  local seq, kind, sender, created_at_ms, event_id, key, digest, pins, encoded =
    unpack(ARGV, at, at + SIZE - 1)
  redis.call('XADD', rows, seq .. '-0', 'kind', kind, 'sender', sender,
    'created_at_ms', created_at_ms, 'event_id', event_id, 'idempotency', key, 'digest', digest,
    'pins', pins)
  redis.call('XADD', bodies, seq .. '-0', 'event_id', event_id, 'encoded', encoded)
  redis.call('HSET', places .. string.sub(event_id, 1, 2), event_id,
    name .. struct.pack('>I4', #seq) .. seq)
  if key ~= '' then
    redis.call('HSET', idempotency, key, seq)
    oldest_key_ms = oldest_key_ms or created_at_ms
  end
  if kind == MEMBERSHIP then
    change_members(cjson.decode(pins), seq)
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
