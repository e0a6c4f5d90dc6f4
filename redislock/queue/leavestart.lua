-- leavestart: KEYS name, ARGV id-and-session, or id note
--
-- The start of "leave". It answers alone if a mutex's holder leaves, and nobody waits or the first
-- waiter lives and asks for all units. Else queue.lua and leave.lua go on, with the same answers.
local K, id = KEYS[1], ARGV[1]
local m = redis.call('HMGET', K, 'hasp2', 'one')
local who, of = string.match(id, '^(%S+) (%S+)$')
local only = m[2] and who and string.sub(m[2], 1, #who + 1) == who .. ' ' and string.match(m[2], '^%S+ %d+ %d+ %d+ %d+ (%S+) ') == of
if only and string.find(m[1] or '', '^%d+ %d+$') then
  redis.call('HDEL', K, 'one')
  return 1
end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local closed = closedUntil(now)
if only and closed <= now then
  local front, cap, head, tail = string.match(m[1] or '', '^(%d+ %d+) (%d+) %2 1 %d+ (%d+) (%d+) 0 0$')
  local text = front and redis.call('HGET', K, 'w:' .. head)
  local who, s, expiry, units, session = string.match(text or '', '^(%S+) (%d+) (%d+) (%d+) %d+ (%S+) ')
  if who and units == cap and tonumber(expiry) > now and tonumber(s) > closed then -- see promote in queue.lua
    redis.call('HDEL', K, 'w:' .. head, 'e:' .. who) -- first: see remove in queue.lua
    if head ~= tail then
      front = front .. ' ' .. cap .. ' ' .. cap .. ' 1 ' .. expiry .. ' ' .. head + 1 .. ' ' .. tail .. ' 0 0'
    end
    redis.call('HSET', K, 'hasp2', front, 'one', text)
    redis.call('PUBLISH', string.sub(K, 1, string.find(K, '{', 1, true) - 1) .. 's:' .. session, who .. ' ' .. s)
    return 1
  end
end
