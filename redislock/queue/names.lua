-- names: the start of the script on many names; the last of KEYS is the mark if ARGV[3] is "marked". With
-- "unmarked" the mark cannot be read for the moment, and nothing is granted.
local t = redis.call('TIME')
local K, id, now = nil, nil, t[1] * 1000000 + t[2]
local names = ARGV[3] == 'marked' and #KEYS - 1 or #KEYS
local closed = ARGV[3] == 'unmarked' and now + 1000000 or closedUntil(KEYS[names + 1], now, ARGV[1])
