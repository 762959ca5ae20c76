-- Seqs: 8 bytes each, big-endian, and strings of them in order.
--
-- A seq does not fit a number of Lua, and `<` of strings is the locale's order. So seqs compare as
-- two numbers of 32 bits.

local NO_SEQ = string.rep('\0', 8)
local LAST_SEQ = string.rep('\255', 8)

local function below(a, b)
  local a_high, a_low = struct.unpack('>I4I4', a)
  local b_high, b_low = struct.unpack('>I4I4', b)
  return a_high < b_high or (a_high == b_high and a_low < b_low)
end

local function larger(a, b)
  return below(a, b) and b or a
end

-- How many of the first `count` seqs are at or below `seq`; `at(n)` is the one at place n, from 0.
local function rank(at, count, seq)
  local low, high = 0, count
  while low < high do
    local middle = math.floor((low + high) / 2)
    if below(seq, at(middle)) then high = middle else low = middle + 1 end
  end
  return low
end

local function stored_at(key)
  return function(place) return redis.call('GETRANGE', key, place * 8, place * 8 + 7) end
end

-- Of the seqs at `key` up to `limit` in (after, through].
local function slice(key, after, through, limit)
  local count = redis.call('STRLEN', key) / 8
  if count == 0 or not below(after, redis.call('GETRANGE', key, -8, -1)) then return '' end
  local first = rank(stored_at(key), count, after)
  local stop = math.min(rank(stored_at(key), count, through), first + limit)
  if stop <= first then return '' end
  return redis.call('GETRANGE', key, first * 8, stop * 8 - 1)
end

local function holds(key, seq)
  local place = rank(stored_at(key), redis.call('STRLEN', key) / 8, seq)
  return place > 0 and stored_at(key)(place - 1) == seq
end

-- Put seqs, in order, among those at `key`; how many bytes are there now.
local function insert(key, added)
  local last = redis.call('GETRANGE', key, -8, -1)
  if last == '' or below(last, added:sub(1, 8)) then
    return redis.call('APPEND', key, added)
  end
  local seqs = redis.call('GET', key)
  local function at(place) return seqs:sub(place * 8 + 1, place * 8 + 8) end
  for start = 1, #added, 8 do
    local seq = added:sub(start, start + 7)
    local place = rank(at, #seqs / 8, seq)
    if place == 0 or at(place - 1) ~= seq then
      seqs = seqs:sub(1, place * 8) .. seq .. seqs:sub(place * 8 + 1)
    end
  end
  redis.call('SET', key, seqs)
  return #seqs
end
