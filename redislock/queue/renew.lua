-- renew: KEYS of names [mark], ARGV ttl keep marked, then for each name: the number of its ids, and the ids
-- with an "h" in front if their owner knows that they hold and a "w" if not.
--
-- Extends the entries that exist and creates none. The answer has the changes only, as pairs:
-- the entry's number, and 0 if it is gone, its Seq if it holds now, or minus the microseconds
-- after which its owner asks.
--
-- Waiters are renewed like holders, and each renewal examines the front of its queue. So a
-- lost message delays a grant by at most the time between two renewals.
local ttl, keep = tonumber(ARGV[1]), ARGV[2]
local news, count, at = {}, 0, 4

local function report(what)
  news[#news + 1] = count
  news[#news + 1] = what
end

-- extend renews one entry and returns whether it exists, and the Seq of an entry that is the
-- name's only one. extendKey comes first (see deleteEntry): a holder must be able to renew when
-- memory is full, and HSET alone would be refused.
local extended, clockBack -- of the current name: its key was extended; the clock was set back
local function extend(member)
  local found = redis.pcall('HMGET', K, 'one', 'e:' .. member, 'hasp1')
  if found.err then return false end -- another type at the key: not ours any more
  if found[1] then
    local owner, expiry, units, capacity, rest = parseOne(found[1])
    if owner ~= member or expiry <= now then return false end
    extendKey(keep)
    redis.call('HSET', K, 'one', member .. ' ' .. number(now + ttl) .. ' ' .. units .. ' ' .. capacity .. ' ' .. rest)
    return true, tonumber(found[3])
  end
  local s, units, expiry, place, rest = parse(found[2])
  if expiry <= now then return false end
  if not extended then extendKey(keep) end
  extended, clockBack = true, clockBack or now + ttl < expiry
  redis.call('HSET', K, 'e:' .. member, pack(s, units, now + ttl, place, rest))
  return true
end

local function advance(waiting)
  if not load() then return end
  purge()
  promote()
  if dirty then save() end
  local all = count
  for _, w in ipairs(waiting) do
    local s, _, _, place = parse(redis.call('HGET', K, 'e:' .. w.id))
    local what = string.sub(place, 1, 1) == 'h' and tonumber(s) or -retry(place)
    count = w.count
    if what ~= 0 then report(what) end
  end
  count = all
end

for k = 1, names do
  K = KEYS[k]
  local waiting, last = {}, at + tonumber(ARGV[at])
  extended, clockBack = false, false
  for j = at + 1, last do
    count = count + 1
    local member = string.sub(ARGV[j], 2)
    local there, alone = extend(member)
    if not there then
      report(0)
    elseif alone and string.sub(ARGV[j], 1, 1) == 'w' then
      report(alone) -- the answer to its request is under way; advance would convert it to a queue
    elseif string.sub(ARGV[j], 1, 1) == 'w' then
      waiting[#waiting + 1] = { count = count, id = member }
    end
  end
  if clockBack and load() then
    noteExpiry(now + ttl)
    save()
  end
  if #waiting > 0 then advance(waiting) end
  at = last + 1
end
return news
