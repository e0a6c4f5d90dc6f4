-- name: the start of the scripts on one name; ARGV[1] is an id. Of a script without the mark among its
-- KEYS nothing depends on closed.
local t = redis.call('TIME')
local K, id, now = KEYS[1], ARGV[1], t[1] * 1000000 + t[2]
local closed = closedUntil(KEYS[2], now)
