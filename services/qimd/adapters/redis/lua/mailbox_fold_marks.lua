#!lua flags=allow-oom
-- Folds the marks of some conversations: of those at or below a seq, the largest epoch's stays.
-- Answers where to go on ('0' at the end), and how many marks went.

local shard, term, bound, cursor, count = unpack(ARGV, 2)
local refusal = refused(shard, term)
if refusal then return refusal end

local function folded(marks)
  local kept, at = '', 1
  while at <= #marks and not below(bound, marks:sub(at + 8, at + 15)) do
    if kept == '' or below(kept:sub(1, 8), marks:sub(at, at + 7)) then
      kept = marks:sub(at, at + 15)
    end
    at = at + 16
  end
  return kept .. marks:sub(at)
end

local gone = 0
local next_cursor, conversations = unpack(
  redis.call('SSCAN', shard_key('folding', shard), cursor, 'COUNT', count))
for _, conversation in ipairs(conversations) do
  local before = redis.call('HGET', shard_key('marks', shard), conversation)
  local after = folded(before)
  if after ~= before then
    redis.call('HSET', shard_key('marks', shard), conversation, after)
    gone = gone + (#before - #after) / 16
  end
  if #after == 16 then redis.call('SREM', shard_key('folding', shard), conversation) end
end
return {'applied', next_cursor, gone}
