-- peek: the holder, the last token, and the holder's field.
local holder = who()
return holder and { holder, redis.call('GET', counter) or '0', redis.call('HKEYS', lock)[1] } or {}
