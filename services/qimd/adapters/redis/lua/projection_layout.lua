-- How the session projection lies in Redis. Each script's first argument is the prefix of its keys:
--
--   partition:<partition>  hash    term, and its checkpoint: meta (JSON), next_offset
--   convs:<user>           zset    conversation_id, by activity
--   rows:<user>            hash    conversation_id -> applied_seq (8 bytes), unread (8)
--   reads:<user>           hash    conversation_id -> read mark; they outlive the rows
--
-- All numbers here (times, conversation_seqs, counts) stay below 2^53, so Lua and scores hold them
-- exactly; only as text they need a format, since Lua's own has 14 digits.

local prefix = ARGV[1]

local function text(number)
  return string.format('%.0f', number)
end

local function partition_key(partition)
  return prefix .. 'partition:' .. partition
end

-- Why a step of this term is not taken; nil if it is.
local function refused(partition, term)
  local stored = redis.call('HGET', partition_key(partition), 'term')
  if not stored then return {'not_found', 'the partition was never opened'} end
  if stored ~= term then return {'stale_epoch', "the partition's term is not the caller's"} end
end

-- applied_seq and unread; nil without a row.
local function row_of(user, conversation)
  local stored = redis.call('HGET', prefix .. 'rows:' .. user, conversation)
  if stored then return struct.unpack('>I8I8', stored) end
end

local function put_row(user, conversation, applied, unread)
  redis.call(
    'HSET', prefix .. 'rows:' .. user, conversation, struct.pack('>I8I8', applied, unread))
end

local function mark_of(user, conversation)
  return tonumber(redis.call('HGET', prefix .. 'reads:' .. user, conversation) or 0)
end

local function put_mark(user, conversation, mark)
  redis.call('HSET', prefix .. 'reads:' .. user, conversation, text(mark))
end
