-- Reading what recipients share.

local FIELDS_MAX = 4000

-- The records of a bucket at `seqs`, one behind the other.
local function records_at(bucket, seqs)
  local found = {}
  for start = 1, #seqs, FIELDS_MAX * 8 do
    local fields = {}
    for at = start, math.min(#seqs, start + FIELDS_MAX * 8 - 1), 8 do
      fields[#fields + 1] = seqs:sub(at, at + 7)
    end
    local records = redis.call('HMGET', bucket_key('records', bucket), unpack(fields))
    found[#found + 1] = table.concat(records)
  end
  return table.concat(found)
end

-- What was dropped last of a shard.
local function gone_of(shard)
  return redis.call('HGET', shard_key('shard', shard), 'gone') or NO_SEQ
end
