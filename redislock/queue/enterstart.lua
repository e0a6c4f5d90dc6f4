-- enterstart: KEYS name, ARGV id ttl keep rest [mode value name]
--
-- rest is the entry behind its expiry: units capacity session since owner. This is the start of
-- "enter". It answers the two usual cases alone: a free name, and a held mutex. All other cases go
-- on to queue.lua and enter.lua. The answers are those of enter.lua.
local K, id, ttl = KEYS[1], ARGV[1], tonumber(ARGV[2])
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local m = redis.call('HMGET', K, 'hasp2', 'one', 'e:' .. id)
local closed = closedUntil(now, ttl)

-- nth is the place among those who wait of one with so many places ahead, if it is one of the first
-- four: places of entries that left are missing. 0 is unknown.
local function nth(head, ahead)
  if ahead == 0 or ahead > 3 then return ahead == 0 and 1 or 0 end
  local waiters, n = redis.call('HMGET', K, 'w:' .. head, 'w:' .. head + 1, 'w:' .. head + 2), 1
  for i = 1, ahead do
    if waiters[i] then n = n + 1 end
  end
  return n
end

local last, kept, queue, place, retry, waits
if not m[2] then
  -- Free, if the numbers of a queue are missing. A key without the field hasp2 is new, or of
  -- something that hasp did not write.
  if not ARGV[6] and ARGV[5] ~= 'ask' and closed <= now and (m[1] or redis.call('EXISTS', K) == 0) then
    last, kept = string.match(m[1] or '0 0', '^(%d+) (%d+)$')
  end
elseif not m[3] and not ARGV[5] then
  -- Another entry holds the mutex and has not expired: id waits at the end of the queue. If not so,
  -- last becomes nil, and enter.lua answers.
  local cap, expiry, head, tail
  last, kept, cap, expiry, head, tail = string.match(m[1] or '', '^(%d+) (%d+) (%d+) %3 1 (%d+) (%d+) (%d+) 0 0$')
  if not last then
    last, kept = string.match(m[1] or '', '^(%d+) (%d+)$')
    expiry, cap = string.match(m[2], '^%S+ %d+ (%d+) (%d+) %2 ')
    head, tail = 1, 0
  end
  if not last or not cap or tonumber(expiry) <= now or string.match(ARGV[4], '^%d+ (%d+)') ~= cap
    or string.sub(m[2], 1, #id + 1) == id .. ' ' then
    last = nil
  else
    tail = tail + 1
    queue = ' ' .. cap .. ' ' .. cap .. ' 1 ' .. expiry .. ' ' .. head .. ' ' .. tail .. ' 0 0'
    place = 'w:' .. tail
    local ahead = tail - head -- see retry in queue.lua
    waits = nth(head, ahead)
    retry = ahead > 3 and 0 or math.max(expiry - now, closed - now) + 1000 * (1 + ahead)
  end
end
local seq = last and math.max(last + 1, now)
if seq and seq < 9007199254740992 then -- beyond, see enter.lua
  local s = string.format('%.0f', seq)
  local keep = now / 1000 + ARGV[3]
  local extend = kept + 0 < keep -- see keepName
  if extend then kept = string.format('%.0f', keep + ARGV[3] / 16) end
  local text = id .. ' ' .. s .. ' ' .. string.format('%.0f', now + ttl) .. ' ' .. ARGV[4]
  if retry then -- it waits
    redis.call('HSET', K, 'hasp2', s .. ' ' .. kept .. queue, place, text, 'e:' .. id, place)
  else
    redis.call('HSET', K, 'hasp2', s .. ' ' .. kept, 'one', text)
  end
  if extend then redis.call('PEXPIREAT', K, kept) end
  return retry and { 'wait', seq, retry, waits } or seq
end
