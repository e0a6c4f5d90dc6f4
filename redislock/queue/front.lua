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

local known = { 'hasp1', 'one', 'queue', 'name', 'evicted' }
local m = redis.call('HMGET', K, unpack(known))
for i, field in ipairs(known) do give(field, m[i]) end
if not m[1] and redis.call('EXISTS', K) == 1 then give('another', '') end -- not ours

-- look reads the entry at a place: nil if it is empty or the entry has expired.
local function look(place)
  local id = redis.call('HGET', K, place)
  local text = id and redis.call('HGET', K, 'e:' .. id)
  local seq, expiry = string.match(text or '', '^(%d+) %d+ (%d+) ')
  return seq and tonumber(expiry) > now and { id = id, text = text, seq = tonumber(seq) }
end

local n, head, tail = string.match(m[3] or '', '^%d+ %d+ (%d+) %d+ (%d+) (%d+)$')
local living = {}
for k = 1, tonumber(n or 0) do living[#living + 1] = look('h:' .. k) or nil end
table.sort(living, function(a, b) return a.seq < b.seq end)
for i = tonumber(head or 1), tonumber(tail or 0) do
  if #living >= limit then break end
  living[#living + 1] = look('w:' .. i) or nil
end
for i = 1, math.min(limit, #living) do
  local e = living[i]
  give('e:' .. e.id, e.text)
  give('b:' .. e.id, redis.call('HGET', K, 'b:' .. e.id))
end
return { string.format('%.0f', now), found }
