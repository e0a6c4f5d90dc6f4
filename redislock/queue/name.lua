-- name: reads what the scripts on one name begin with; ARGV[1] is an id where they need one.
local K, id, now = KEYS[1], ARGV[1] or '', nil
local m = redis.call('HMGET', K, 'hasp1', 'queue', 'watch', 'e:' .. id)
