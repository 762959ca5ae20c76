#!lua flags=no-writes
-- The shard as it is stored; nothing if it was never opened.

local state = state_of(ARGV[2])
return state[1] and state
