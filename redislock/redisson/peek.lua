-- peek: who holds, and the last token.
local holder = who()
return holder and { holder, redis.call('GET', counter) or '0' } or {}
