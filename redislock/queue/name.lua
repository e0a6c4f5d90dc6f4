-- name: the start of the scripts on one name; ARGV[1] is an id.
local t = redis.call('TIME')
local K, id, now = KEYS[1], ARGV[1], t[1] * 1000000 + t[2]
local closed = closedUntil(now)
