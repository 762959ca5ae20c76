#!lua flags=no-writes
-- Which of some events (their ids, 16 bytes each) a user has entries of: the place of each among
-- them (4 bytes, from 0), and the entry's seq (8).

local user, events = ARGV[2], ARGV[3]
local found = {}
for start = 1, #events, 16 do
  local stored = redis.call('GET', prefix .. 'event:' .. events:sub(start, start + 15)) or ''
  for at = 1, #stored, 20 do
    local bucket, seq = stored:sub(at, at + 11), stored:sub(at + 12, at + 19)
    if holds(bucket_key('entries', bucket) .. user, seq) then
      found[#found + 1] = struct.pack('>I4', (start - 1) / 16) .. seq
    end
  end
end
return table.concat(found)
