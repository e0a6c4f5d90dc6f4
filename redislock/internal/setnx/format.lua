-- format: the type of an unexpected key, and the part of its contents that identifies its
-- writer: a few bytes, however large the key is.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'string' then return { kind, redis.call('GETRANGE', KEYS[1], 0, 127) } end
if kind ~= 'hash' then return { kind, '' } end
local m = redis.call('HMGET', KEYS[1], 'hasp2', 'mode', 'hasp1')
if m[1] then return { kind, 'hasp2' } end
if m[3] then return { kind, 'hasp1' } end
if m[2] then return { kind, 'mode ' .. m[2] } end
return { kind, redis.call('HLEN', KEYS[1]) == 1 and redis.call('HKEYS', KEYS[1])[1] or '' }
