#!lua
-- Claims a head for the shard's owner, and makes the conversation before if asked to.
-- KEYS: 1 epochs, 2 head, 3 conversations (an index in byte order)
-- ARGV: 1 writer shard, 2 epoch, 3 created_at_ms, or '' to make nothing, 4 the conversation's place
--       in the index, 5 its name among the pending ones, 6 prefix of their keys
local epochs, head, conversations = unpack(KEYS)
local writer_shard, epoch, created_at_ms, place, name, pending = unpack(ARGV)

if shard_is_stale(epochs, writer_shard, epoch) then
  return STALE_SHARD
end
local fencing_epoch, shard_before = unpack(
  redis.call('HMGET', head, 'fencing_epoch', 'writer_shard'))
if not fencing_epoch then
  if created_at_ms == '' then
    return NO_CONVERSATION
  end
  redis.call('HSET', head, 'fencing_epoch', epoch, 'writer_shard', writer_shard,
    'created_at_ms', created_at_ms, 'head_version', 0, 'dispatched_through', 0,
    'audited_through', 0, 'membership_version', 0, 'member_count', 0, 'last_created_at_ms', 0,
    'forgotten_through', 0, 'last_request', '')
  redis.call('ZADD', conversations, 0, place)
  return {'applied', state_of(head)}
end
if tonumber(fencing_epoch) > tonumber(epoch) then
  return STALE_HEAD
end
redis.call('HSET', head, 'fencing_epoch', epoch, 'writer_shard', writer_shard)
if shard_before ~= writer_shard then
  redis.call('SMOVE', pending .. shard_before, pending .. writer_shard, name)
end
return {'applied', state_of(head)}
