#!lua
-- Keeps log records; one that is there at the same seq stays as it is.

local shard, term = ARGV[2], ARGV[3]
local refusal = refused(shard, term)
if refusal then return refusal end
for at = 4, #ARGV, 2 do
  if redis.call('HSETNX', shard_key('kept', shard), ARGV[at], ARGV[at + 1]) == 1 then
    redis.call('ZADD', shard_key('kept_order', shard), 0, ARGV[at])
  end
end
return {'applied'}
