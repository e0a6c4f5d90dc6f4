-- peek: the holder, the last token, and the milliseconds left (-1: it never expires).
local holder = redis.call('GET', lock)
return holder and { holder, redis.call('GET', counter) or '0', redis.call('PTTL', lock) } or {}
