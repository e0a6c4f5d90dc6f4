-- renew: KEYS of names, ARGV ttl keep, then for each name: how many, and the ids with
-- an "h" in front if their owner knows that they hold and a "w" if not.
--
-- Extends what is there and re-creates nothing. The answer has the news alone: the
-- entry's number, and 0 if it is gone, its Seq if it holds now, or minus the microseconds
-- after which its owner should ask.
--
-- Waiters are renewed like holders, and each renewal looks at the front of its queue. A
-- lost message therefore delays for the time between two renewals and no longer.
local ttl, keep = tonumber(ARGV[1]), ARGV[2]
local news, count, at = {}, 0, 3
clock()

local function tidings(what)
  news[#news + 1] = count
  news[#news + 1] = what
end

-- extend: lengthen comes first for the reason given at forget: a holder must be able to renew
-- when memory is full, and HSET alone would be refused. alone is the Seq of one that nobody
-- stands beside.
local lengthened, back -- of the name in turn: its key was, and the clock
local function extend(member)
  local found = redis.pcall('HMGET', K, 'one', 'e:' .. member, 'hasp1')
  if found.err then return false end -- another type at the key: not ours any more
  if found[1] then
    local owner, expiry, units, capacity, rest = parseOne(found[1])
    if owner ~= member or expiry <= now then return false end
    lengthen(keep)
    redis.call('HSET', K, 'one', member .. ' ' .. number(now + ttl) .. ' ' .. units .. ' ' .. capacity .. ' ' .. rest)
    return true, tonumber(found[3])
  end
  local s, units, expiry, place, rest = parse(found[2])
  if expiry <= now then return false end
  if not lengthened then lengthen(keep) end
  lengthened, back = true, back or now + ttl < expiry
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
    if what ~= 0 then tidings(what) end
  end
  count = all
end

for k = 1, #KEYS do
  K = KEYS[k]
  local waiting, last = {}, at + tonumber(ARGV[at])
  lengthened, back = false, false
  for j = at + 1, last do
    count = count + 1
    local member = string.sub(ARGV[j], 2)
    local there, alone = extend(member)
    if not there then
      tidings(0)
    elseif alone and string.sub(ARGV[j], 1, 1) == 'w' then
      tidings(alone) -- the answer to its request is under way; advance would spread it
    elseif string.sub(ARGV[j], 1, 1) == 'w' then
      waiting[#waiting + 1] = { count = count, id = member }
    end
  end
  if back and load() then
    nearer(now + ttl)
    save()
  end
  if #waiting > 0 then advance(waiting) end
  at = last + 1
end
return news
