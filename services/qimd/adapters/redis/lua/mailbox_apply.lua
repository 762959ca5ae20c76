#!lua
-- Applies some records of a shard: see `ports.mailbox.ApplyStep`, and mailbox_step.py for how the
-- step is packed.
--
-- Records come in increasing seq, each with the number of its *run*: records for the same
-- recipients whose entries may be written together, one APPEND a user. Runs are in such an order
-- that a user's entries get written by increasing seq.

local shard, term, request_id, expected, position, next_offset, lagging = unpack(ARGV, 2, 8)
local records, marks, days, runs = unpack(ARGV, 9, 12)
local AUDIENCES = 12  -- the arguments behind it: the tenant's part of the recipients' keys, their
                      -- lanes, and they themselves

-- Whether the step is to be applied.

local state_key = shard_key('shard', shard)
local stored_term, stored_position, stored_lagging, lane_last, gone, last_request, last_verdicts =
  unpack(redis.call(
    'HMGET', state_key,
    'term', 'position', 'lagging', 'lane_last', 'gone', 'request_id', 'verdicts'))
if not stored_term then return NO_SHARD end
if last_request == request_id then return {'applied', last_verdicts} end
if stored_term ~= term then return STALE_TERM end

local function by_lane(packed)
  local lanes = {}
  for at = 1, #packed, 9 do
    lanes[packed:byte(at)] = packed:sub(at + 1, at + 8)
  end
  return lanes
end

-- Whether a watermark would go back.
local function lowers()
  if below(position, stored_position) then return true end
  local before, after = by_lane(stored_lagging), by_lane(lagging)
  for lane, seq in pairs(before) do
    if below(after[lane] or position, seq) then return true end
  end
  for lane, seq in pairs(after) do
    if below(seq, before[lane] or stored_position) then return true end
  end
  return false
end

if stored_position ~= expected or lowers() then
  return {'head_moved', "the shard's position is another"}
end

-- Nothing refuses it from here on, and so writing may begin.

-- The recipients of each audience by lane, as text, and the lanes that they are in: a mask of 64
-- bits, as two numbers of 32. The names are read only where they are written, and let go of behind
-- their last piece: those of a large step, all at once, would be walked over again and again in
-- search of garbage.
local audiences = {}
for at = AUDIENCES + 1, #ARGV, 3 do
  local high, low = struct.unpack('>i4i4', ARGV[at + 1])
  audiences[#audiences + 1] = {
    tenant = ARGV[at], high = high, low = low, text = ARGV[at + 2], pieces = 0}
end

local function has_lane(high, low, lane)
  if lane < 32 then return bit.band(low, bit.lshift(1, lane)) ~= 0 end
  return bit.band(high, bit.lshift(1, lane - 32)) ~= 0
end

-- Which lanes of each dispatch are done, and where it was seen last. A step may hold a dispatch
-- twice.

local progress = {}

local function progress_of(dispatch, digest)
  local known = progress[dispatch]
  if not known then
    known = {high = 0, low = 0, digest = digest, seen = NO_SEQ}
    local stored = redis.call('HGET', progress_key(shard, dispatch), dispatch)
    if stored then
      known.high, known.low, known.digest, known.seen = struct.unpack('>I4I4c16c8', stored)
    end
    progress[dispatch] = known
  end
  return known
end

-- Which bucket a record is in: that of the last day that begins at or before it.

local function add_days()
  local known = {}
  for _, day in ipairs(redis.call('LRANGE', shard_key('days', shard), 0, -1)) do
    known[day:sub(1, 8)] = true
  end
  for at = 1, #days, 16 do
    local day = days:sub(at, at + 15)
    if not known[day:sub(1, 8)] then redis.call('RPUSH', shard_key('days', shard), day) end
  end
end

if days ~= '' then add_days() end

local shard_bytes = struct.pack('>I4', tonumber(shard))
local first_seqs = {}  -- of the days, the last one first

local function bucket_of(seq)
  for back = 1, math.huge do
    if not first_seqs[back] then
      local day = redis.call('LINDEX', shard_key('days', shard), -back)
      first_seqs[back] = day and day:sub(9) or NO_SEQ
    end
    if not below(seq, first_seqs[back]) then return shard_bytes .. first_seqs[back] end
  end
end

-- Judge the records. What is new of a run, and of one bucket, becomes a piece.

local verdicts, shared, pieces, piece_of = {}, {}, {}, {}

local function add(one, run, audience, high, low)
  shared[#shared + 1] = one
  local piece = piece_of[run]
  if not piece or piece.bucket ~= one.bucket then
    piece = {
      bucket = one.bucket, audience = audience, above = one.above,
      whole = true, places = {}, highs = {}, lows = {}}
    pieces[#pieces + 1] = piece
    audience.pieces = audience.pieces + 1
    piece_of[run] = piece
  end
  local count = #piece.places + 1
  piece.places[count], piece.highs[count], piece.lows[count] = #shared, high, low
  piece.whole = piece.whole and high == audience.high and low == audience.low
end

-- What expires tells where its dispatch was seen; so must what leaves nothing to expire.
local function leave_no_record(seq, dispatch)
  redis.call('RPUSH', shard_key('seen_again', shard), seq .. dispatch)
end

local function judge(seq, dispatch, digest, run, record)
  local known = progress_of(dispatch, digest)
  known.seen = larger(known.seen, seq)
  if known.digest ~= digest then
    leave_no_record(seq, dispatch)
    return 0, 0, 0, 0, 1
  end
  local audience = audiences[struct.unpack('>I2', runs, run * 2 + 1) + 1]
  local high = bit.band(audience.high, bit.bnot(known.high))
  local low = bit.band(audience.low, bit.bnot(known.low))
  known.high, known.low = bit.bor(known.high, high), bit.bor(known.low, low)
  -- What is above the shard's position is above all that is stored. What the shard has dropped
  -- already is done, and leaves nothing.
  local above = below(stored_position, seq)
  if (high ~= 0 or low ~= 0) and (above or below(gone, seq)) then
    local one = {bucket = bucket_of(seq), seq = seq, record = record, above = above}
    add(one, run, audience, high, low)
  else
    leave_no_record(seq, dispatch)
  end
  return high, low, bit.bxor(audience.high, high), bit.bxor(audience.low, low), 0
end

local at = 1
while at <= #records do
  local seq, dispatch, digest, run, record
  seq, dispatch, digest, run, record, at = struct.unpack('>c8c16c16I2I2c0', records, at)
  verdicts[#verdicts + 1] = struct.pack('>I4I4I4I4B', judge(seq, dispatch, digest, run, record))
end

for dispatch, known in pairs(progress) do
  local done = struct.pack('>I4I4', known.high, known.low) .. known.digest .. known.seen
  redis.call('HSET', progress_key(shard, dispatch), dispatch, done)
end

-- Add seqs to those at a key; how many bytes are there now.
local function put(key, seqs, above)
  return above and redis.call('APPEND', key, seqs) or insert(key, seqs)
end

-- What recipients share. A record whose lanes come in turns is there already.

for _, one in ipairs(shared) do
  local bucket, seq = one.bucket, one.seq
  if redis.call('HSETNX', bucket_key('records', bucket), seq, one.record) == 1 then
    redis.call('APPEND', prefix .. 'event:' .. one.record:sub(1, 16), bucket .. seq)
    if put(bucket_key('seqs', bucket), seq, one.above) == 8 then
      redis.call('ZADD', shard_key('begun', shard), 0, bucket)
    end
  end
end

-- Entries.

local last_place = {}  -- lane -> the place, in `shared`, of its last record

-- The seqs of a piece's entries for the users of a lane, and the place of the last one.
local function seqs_of(piece, lane)
  local seqs, last = {}, nil
  for at, place in ipairs(piece.places) do
    if piece.whole or has_lane(piece.highs[at], piece.lows[at], lane) then
      seqs[#seqs + 1] = shared[place].seq
      last = place
    end
  end
  return table.concat(seqs), last
end

-- These are a user's first entries of a bucket.
local function begin(bucket, user)
  redis.call('RPUSH', bucket_key('users', bucket), user)
  redis.call('ZADD', prefix .. 'buckets:' .. user, 0, bucket)
end

local function blocks_of(audience)
  local blocks = audience.blocks or cjson.decode(audience.text)
  audience.pieces = audience.pieces - 1
  audience.blocks = audience.pieces > 0 and blocks or nil
  return blocks
end

local function write(piece)
  local bucket, tenant = piece.bucket, piece.audience.tenant
  local entries = bucket_key('entries', bucket) .. tenant
  local seqs, last
  for _, block in ipairs(blocks_of(piece.audience)) do
    local lane, names = block[1], block[2]
    if not (seqs and piece.whole) then seqs, last = seqs_of(piece, lane) end
    if last then
      last_place[lane] = math.max(last_place[lane] or 0, last)
      for _, name in ipairs(names) do
        if put(entries .. name, seqs, piece.above) == #seqs then
          begin(bucket, tenant .. name)
        end
      end
    end
  end
end

for _, piece in ipairs(pieces) do
  write(piece)
end

-- Marks, by first seq. A known epoch keeps its first.

local function add_mark(conversation, epoch, first_seq)
  local known = redis.call('HGET', shard_key('marks', shard), conversation) or ''
  local place = 1
  for start = 1, #known, 16 do
    if known:sub(start, start + 7) == epoch then return end
    if not below(first_seq, known:sub(start + 8, start + 15)) then place = start + 16 end
  end
  local marked = known:sub(1, place - 1) .. epoch .. first_seq .. known:sub(place)
  redis.call('HSET', shard_key('marks', shard), conversation, marked)
  if known ~= '' then redis.call('SADD', shard_key('folding', shard), conversation) end
end

at = 1
while at <= #marks do
  local epoch, first_seq, conversation
  epoch, first_seq, conversation, at = struct.unpack('>c8c8I2c0', marks, at)
  add_mark(conversation, epoch, first_seq)
end

-- Where the shard stands.

local LANES = 64
local last = {struct.unpack(string.rep('c8', LANES), lane_last)}
for lane, place in pairs(last_place) do
  last[lane + 1] = larger(last[lane + 1], shared[place].seq)
end
local answer = table.concat(verdicts)
redis.call(
  'HSET', state_key,
  'position', position, 'next_offset', next_offset, 'lagging', lagging,
  'lane_last', table.concat(last, '', 1, LANES), 'request_id', request_id, 'verdicts', answer)
return {'applied', answer}
