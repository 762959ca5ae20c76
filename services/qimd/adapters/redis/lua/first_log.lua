#!lua
-- Notes which log is the first; the one that was noted before stays. KEYS: 1 it. ARGV: 1 identity
redis.call('SET', KEYS[1], ARGV[1], 'NX')
return {'applied', redis.call('GET', KEYS[1])}
