-- last: ARGV id evict
--
-- The start of "leave", and all of it for a holder that nobody waits behind. The answers
-- are those of leave.lua.
local K, id = KEYS[1], ARGV[1]
local m = redis.call('HMGET', K, 'hasp1', 'queue', 'watch', 'e:' .. id)
if not m[4] then return 0 end
if not m[3] and ARGV[2] == '' and string.match(m[2], '^%d+ %d+ 1 %d+ 1 0$') then
  redis.call('HDEL', K, 'queue', 'h:1', 'e:' .. id, 'b:' .. id)
  return 1
end
local now
