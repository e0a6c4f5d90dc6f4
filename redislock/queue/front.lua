-- front: ARGV limit
--
-- Answers the server's time and the fields of the first live entries, at most limit of them. It
-- does not read the waiters behind them. It reads all holders, because their slots are in no
-- order. The answer has the form of list's, so that the same code parses both.
local t = redis.call('TIME')
local K, now, limit = KEYS[1], t[1] * 1000000 + t[2], tonumber(ARGV[1])
local found = {}

-- give adds a field to the answer, if it is there.
local function give(field, value)
  if value then
    found[#found + 1] = field
    found[#found + 1] = value
  end
end

local known = { 'hasp2', 'name', 'evicted' }
local m = redis.call('HMGET', K, unpack(known))
for i, field in ipairs(known) do give(field, m[i]) end
if not m[1] and redis.call('EXISTS', K) == 1 then give('another', '') end -- not ours

-- look reads the entry in a field, if there is one and it has not expired.
local living = {}
local function look(field)
  local text = redis.call('HGET', K, field)
  local id, seq, expiry = string.match(text or '', '^(%S+) (%d+) (%d+) ')
  if id and tonumber(expiry) > now then
    living[#living + 1] = { field = field, id = id, text = text, seq = tonumber(seq) }
  end
end

look('one')
local n, head, tail = string.match(m[1] or '', '^%d+ %d+ %d+ %d+ (%d+) %d+ (%d+) (%d+) ')
for k = 1, #living == 0 and tonumber(n or 0) or 0 do look('h:' .. k) end
table.sort(living, function(a, b) return a.seq < b.seq end)
for i = tonumber(head or 1), tonumber(tail or 0) do
  if #living >= limit then break end
  look('w:' .. i)
end
for i = 1, math.min(limit, #living) do
  local e = living[i]
  give(e.field, e.text)
  give('b:' .. e.id, redis.call('HGET', K, 'b:' .. e.id))
end
return { string.format('%.0f', now), found }
