-- renew: KEYS of names, ARGV ttl keep, then for each name: the number of its ids, and the ids with
-- an "h" in front if their owner knows that they hold and a "w" if not.
--
-- Extends the entries that exist and creates none. The answer has the changes only, as pairs:
-- the entry's number, and 0 if it is gone, its Seq if it holds now, or minus the microseconds
-- after which its owner asks.
--
-- Waiters are renewed like holders, and each renewal examines the front of its queue. So a
-- lost message delays a grant by at most the time between two renewals.
local ttl, keep = tonumber(ARGV[1]), ARGV[2]
local news, count, first = {}, 0, 3

local function report(number, what)
  news[#news + 1] = number
  news[#news + 1] = what
end

-- read returns the entries of ids by their place in ARGV, and the field of each. A key of another
-- type is not ours any more.
local function read(from, to)
  local fields, texts, at, places = { 'hasp2', 'one' }, {}, {}, {}
  for j = from, to do fields[#fields + 1] = 'e:' .. string.sub(ARGV[j], 2) end
  local m = redis.pcall('HMGET', K, unpack(fields))
  if m.err or not load(m) then return texts, at end
  for j = from, to do
    local place = m[j - from + 3]
    id = string.sub(ARGV[j], 2)
    if one and find(false) then
      texts[j], at[j] = one, 'one'
    elseif place then
      at[j], places[#places + 1] = place, place
    end
  end
  local found, next = #places > 0 and redis.call('HMGET', K, unpack(places)) or {}, 1
  for j = from, to do
    if at[j] and at[j] ~= 'one' then texts[j], next = found[next], next + 1 end
  end
  id = nil
  return texts, at
end

-- renew extends the entries of one name. extendKey comes first (see remove): a holder must be able
-- to renew when memory is full, and HSET alone would be refused.
local function renew(from, to)
  local texts, at = read(from, to)
  local waiting, alive, clockBack = {}, false, false
  for j = from, to do
    count = count + 1
    local who, s, expiry, units, rest = parse(texts[j])
    if expiry <= now then
      report(count, 0)
    else
      if not alive then extendKey(keep) end
      alive = true
      local text = pack(who, s, now + ttl, units, rest)
      if at[j] == 'one' then one = text else put(at[j], text) end
      local knows, waits = string.sub(ARGV[j], 1, 1) == 'h', string.sub(at[j], 1, 2) == 'w:'
      clockBack = clockBack or not waits and now + ttl < expiry
      if waits and knows then
        put('k:' .. who, '') -- see promote
      elseif waits then
        waiting[#waiting + 1] = { count = count, id = who, at = at[j] }
      elseif not knows then -- the answer to its request is under way, or the message was lost
        report(count, tonumber(s))
      end
    end
  end
  if not alive then return end
  if clockBack then noteExpiry(now + ttl) end
  save(true)
  if #waiting == 0 then return end
  granted = {}
  purge()
  promote()
  if dirty then save() end
  for _, w in ipairs(waiting) do
    local what = granted[w.id] or -retry(w.at)
    if what ~= 0 then report(w.count, what) end
  end
end

for k = 1, #KEYS do
  K = KEYS[k]
  local last = first + tonumber(ARGV[first])
  renew(first + 1, last)
  first = last + 1
end
return news
