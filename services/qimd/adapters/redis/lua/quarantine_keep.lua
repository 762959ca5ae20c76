#!lua
-- Keeps records, each once; what is there already stays as it is.
-- KEYS: 1 records (a stream, the newest last), 2 the places that are taken (a set)
-- ARGV: eight values a record: its place, then log_identity, partition, offset, source, reason,
--       at_ms, value
for at = 1, #ARGV, 8 do
  local place, log_identity, partition, offset, source, reason, at_ms, value =
    unpack(ARGV, at, at + 7)
  if redis.call('SADD', KEYS[2], place) == 1 then
    redis.call('XADD', KEYS[1], '*', 'log_identity', log_identity, 'partition', partition,
      'offset', offset, 'source', source, 'reason', reason, 'at_ms', at_ms, 'value', value)
  end
end
return {'applied'}
