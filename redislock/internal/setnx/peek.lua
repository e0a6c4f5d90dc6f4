-- peek: the holder, and the last token.
local holder = redis.call('GET', lock)
return holder and { holder, redis.call('GET', counter) or '0' } or {}
