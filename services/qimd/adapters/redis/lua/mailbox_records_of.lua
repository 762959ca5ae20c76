#!lua flags=no-writes
-- All records of some events (their ids, 16 bytes each): the shard (4 bytes) and seq (8) of each,
-- and the records.

local places, records = {}, {}
for start = 1, #ARGV[2], 16 do
  local stored = redis.call('GET', prefix .. 'event:' .. ARGV[2]:sub(start, start + 15)) or ''
  for at = 1, #stored, 20 do
    local bucket, seq = stored:sub(at, at + 11), stored:sub(at + 12, at + 19)
    places[#places + 1] = bucket:sub(1, 4) .. seq
    records[#records + 1] = redis.call('HGET', bucket_key('records', bucket), seq)
  end
end
return {table.concat(places), table.concat(records)}
