-- peek: as setnx/peek.lua, and the holder's field.
local holder = who()
return holder and { holder, redis.call('GET', counter) or '0', redis.call('PTTL', lock), redis.call('HKEYS', lock)[1] } or {}
