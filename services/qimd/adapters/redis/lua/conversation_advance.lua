#!lua
-- Raises dispatched_through of some conversations, each with an answer of its own.
-- KEYS: 1 epochs, 2 conversations to audit (an index in byte order), then the heads
-- ARGV: 1 writer shard, 2 epoch, 3 prefix of the pending ones' keys, then three values a head:
--       through, its name among the pending ones, its place in the index
local epochs, to_audit = unpack(KEYS)
local writer_shard, epoch, pending = unpack(ARGV)

local function advance(head, through, name, place)
  local fencing_epoch, head_version, dispatched, audited, shard_of_head =
    unpack(redis.call('HMGET', head, 'fencing_epoch', 'head_version', 'dispatched_through',
      'audited_through', 'writer_shard'))
  if not fencing_epoch then
    return NO_CONVERSATION
  end
  if tonumber(fencing_epoch) > tonumber(epoch) then
    return STALE_HEAD
  end
  if tonumber(through) > tonumber(head_version) then
    return {'head_moved', 'the head is below it'}
  end
  if tonumber(through) > tonumber(dispatched) then
    redis.call('HSET', head, 'dispatched_through', through)
    if through == head_version then
      redis.call('SREM', pending .. shard_of_head, name)
    end
    if tonumber(through) > tonumber(audited) then
      redis.call('ZADD', to_audit, 0, place)
    end
  end
  return {'applied'}
end

if shard_is_stale(epochs, writer_shard, epoch) then
  return STALE_SHARD
end
local answers = {}
for number = 1, #KEYS - 2 do
  answers[number] = advance(KEYS[number + 2], unpack(ARGV, 3 * number + 1, 3 * number + 3))
end
return {'applied', answers}
