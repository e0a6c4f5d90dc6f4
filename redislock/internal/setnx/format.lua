-- format: the type of a key, the part of its contents that identifies its writer, a few bytes,
-- however large the key is, and of what may be a lock the milliseconds left, -1 if it never expires.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'string' then return { kind, redis.call('GETRANGE', KEYS[1], 0, 127), redis.call('PTTL', KEYS[1]) } end
if kind ~= 'hash' then return { kind, '' } end
local fields = { 'mode' } -- and the number of a queue of hasp, which is in the name of a field
for i = 1, 99 do fields[i + 1] = 'hasp' .. i end
local m = redis.call('HMGET', KEYS[1], unpack(fields))
if m[1] then return { kind, 'mode ' .. m[1] } end
for i = 2, #fields do
  if m[i] then return { kind, fields[i] } end
end
return { kind, redis.call('HLEN', KEYS[1]) == 1 and redis.call('HKEYS', KEYS[1])[1] or '', redis.call('PTTL', KEYS[1]) }
