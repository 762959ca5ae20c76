#!lua
-- Draws an epoch from the deployment's one counter and makes it the shard's.
-- KEYS: 1 epochs (a hash: `counter`, and each shard's as `<kind>:<shard>`), 2 the shard's draws
-- ARGV: 1 the shard's field, 2 nonce, 3 now_s
local epochs, draws = unpack(KEYS)
local field, nonce, now_s = unpack(ARGV)

-- Kept for ever: a late repetition must find that it was served, or it would fence its successor.
local given = redis.call('HGET', draws, nonce)
if given then
  if given ~= redis.call('HGET', epochs, field) then
    return {'stale_epoch', 'another owner has raised it since'}
  end
  return {'applied', given}
end
local counter = tonumber(redis.call('HGET', epochs, 'counter') or 0)
local epoch = string.format('%.0f', math.max(counter + 1, tonumber(now_s)))
redis.call('HSET', epochs, 'counter', epoch, field, epoch)
redis.call('HSET', draws, nonce, epoch)
return {'applied', epoch}
