-- names: the start of the script on many names.
local t = redis.call('TIME')
local K, id, now = nil, nil, t[1] * 1000000 + t[2]
local closed = closedUntil(now, tonumber(ARGV[1]))
