#!lua
-- Replaces one checkpoint by another.

local partition, term, meta, next_offset, wanted_meta, wanted_offset = unpack(ARGV, 2)
local refusal = refused(partition, term)
if refusal then return refusal end
local key = partition_key(partition)
local stored_meta, stored_offset = unpack(redis.call('HMGET', key, 'meta', 'next_offset'))
local expected = stored_meta == meta and stored_offset == next_offset
local wanted = stored_meta == wanted_meta and stored_offset == wanted_offset
if not expected and not wanted then
  return {'head_moved', 'another owner moved the checkpoint'}
end
redis.call('HSET', key, 'meta', wanted_meta, 'next_offset', wanted_offset)
return {'applied'}
