#!lua
-- A device's position: opened at a floor, or raised. Answers acked and handed.

local device, step, acked, handed = prefix .. 'device:' .. ARGV[2], unpack(ARGV, 3)
local stored = redis.call('GET', device)
if step == 'open' then
  if stored then return {'applied', stored} end
else
  if not stored then return {'not_found', 'the device was never opened'} end
  acked, handed = larger(stored:sub(1, 8), acked), larger(stored:sub(9), handed)
end
redis.call('SET', device, acked .. handed)
return {'applied', acked .. handed}
