-- list: the server's time and the whole hash; whoever asked sorts it out.
local t = redis.call('TIME')
return { string.format('%.0f', t[1] * 1000000 + t[2]), redis.call('HGETALL', KEYS[1]) }
