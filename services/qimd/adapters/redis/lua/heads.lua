-- What every step on a conversation looks at, and answers.
--
-- A head is a hash: fencing_epoch, head_version, dispatched_through, audited_through,
-- membership_version, member_count, last_created_at_ms, created_at_ms, writer_shard, last_request
-- (the request id of its last commit) and forgotten_through (idempotency keys of events up to here
-- are gone).
local STALE_SHARD = {'stale_epoch', "the shard's epoch is not the caller's"}
local STALE_HEAD = {'stale_epoch', "the head's epoch is above the caller's"}
local NO_CONVERSATION = {'not_found', 'no such conversation'}

local function shard_is_stale(epochs, writer_shard, epoch)
  return redis.call('HGET', epochs, 'writer:' .. writer_shard) ~= epoch
end

-- In the order of ports.store.ConversationState; one text, which is one turn of redis-py's parser.
local function state_of(head)
  return table.concat(redis.call('HMGET', head, 'fencing_epoch', 'head_version',
    'dispatched_through', 'membership_version', 'member_count', 'last_created_at_ms',
    'created_at_ms'), ' ')
end
