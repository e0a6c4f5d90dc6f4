-- last: KEYS name [mark], ARGV id evict note
--
-- The start of "leave", and all of it for a holder without other entries. The answers are
-- those of leave.lua.
local K, id = KEYS[1], ARGV[1]
local one = redis.call('HGET', K, 'one')
if one and ARGV[2] == '' then
  if string.sub(one, 1, #id + 1) ~= id .. ' ' then return 0 end
  redis.call('HDEL', K, 'one')
  return 1
end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local closed = closedUntil(KEYS[2], now)
