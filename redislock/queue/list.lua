-- list: the server's time and the whole hash; the client parses it.
local t = redis.call('TIME')
return { string.format('%.0f', t[1] * 1000000 + t[2]), redis.call('HGETALL', KEYS[1]) }
