-- The queue of one name, in one hash; docs/backends/redis.md lists its fields.
--
-- One key and not several, although a sorted set would find the earliest expiry by itself:
-- DEL, eviction or an operator's mistake then takes all of a name or nothing of it, and
-- never leaves entries without expiry or expiries without entries. Few fields and not
-- many, because each one read or written costs as much as the rest of a short script.
--
-- Most locks are never contended, and a holder whom nobody stands beside is one field,
-- 'one', which its own scripts write and remove: first.lua and last.lua. Whoever finds
-- somebody else there spreads it over the fields that a queue has. A '+' behind the Seq
-- says that this has been done; the next one who finds nobody at all takes it back.
--
-- Times are microseconds of this server's clock, and so are Seqs. Both stay below 2^53
-- until the year 2255, hence exact in Lua's doubles. number() writes them out, because
-- Lua's own tostring keeps 14 of their 16 digits.
--
-- The script in front has set K, now (or left it nil) and id (or left it nil, where no
-- entry is asked for by name).
local dirty = false
local seq, cap, held, n, soon, head, tail
local watched -- until when
local mine    -- the entry of id

local function number(x) return string.format('%.0f', x) end

local function clock()
  if not now then
    local t = redis.call('TIME')
    now = t[1] * 1000000 + t[2]
  end
  return now
end

-- An entry is "Seq units expiry place rest"; rest begins with its session.
local function parse(entry)
  local s, units, expiry, place, rest = string.match(entry or '', '^(%d+) (%d+) (%d+) (%a%d+) (.*)$')
  return s, tonumber(units or 0), tonumber(expiry or 0), place, rest
end

local function pack(s, units, expiry, place, rest)
  return s .. ' ' .. units .. ' ' .. number(expiry) .. ' ' .. place .. ' ' .. rest
end

-- parseOne reads the field 'one'.
local function parseOne(text)
  local owner, expiry, units, capacity, rest = string.match(text, '^(%S+) (%d+) (%d+) (%d+) (.*)$')
  return owner, tonumber(expiry), tonumber(units), tonumber(capacity), rest
end

-- lengthen puts off the day on which the name is forgotten, to ms from now, and never brings
-- it nearer: another client may keep names for longer, or have a TTL that is longer than all of
-- what we keep. It always writes, also where it changes nothing: see forget.
local function lengthen(ms)
  redis.call('PEXPIRE', K, number(math.max(redis.call('PTTL', K), tonumber(ms))))
end

local function numbers()
  return cap .. ' ' .. held .. ' ' .. n .. ' ' .. number(soon) .. ' ' .. head .. ' ' .. tail
end

-- spread writes the entry that stands alone as a queue of one. HDEL comes first for the
-- reason given at forget. Its Seq is the name's last: nobody has entered since.
local function spread(text)
  local owner, expiry, units, capacity, rest = parseOne(text)
  cap, held, n, soon = capacity, units, 1, expiry
  local entry = pack(number(seq), units, expiry, 'h1', rest)
  redis.call('HDEL', K, 'one')
  redis.call('HSET', K, 'hasp1', number(seq) .. '+', 'queue', numbers(), 'h:1', owner, 'e:' .. owner, entry)
  if owner == id then mine = entry end
end

-- load reads the name's own numbers and the entry of id. false: hasp did not write this
-- hash, which has no field hasp1. A key of another type raises WRONGTYPE.
local function load()
  local m = redis.call('HMGET', K, 'hasp1', 'queue', 'watch', 'e:' .. (id or ''), 'one')
  if not m[1] and redis.call('EXISTS', K) == 1 then return false end
  dirty, seq, mine = false, tonumber(string.match(m[1] or '0', '^%d+')), m[4]
  watched = tonumber(m[3] or 0)
  cap, held, n, soon, head, tail = string.match(m[2] or '', '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  cap, held, n, soon = tonumber(cap), tonumber(held or 0), tonumber(n or 0), tonumber(soon or 0)
  head, tail = tonumber(head or 1), tonumber(tail or 0)
  if m[5] then spread(m[5]) end
  return true
end

-- save writes what load read, together with further fields. A name without entries keeps
-- what its next Seq depends on, and nothing of the last capacity. Whoever watches the name
-- has written until when; nobody else pays for a message.
local function save(...)
  if n == 0 and head > tail then
    redis.call('HDEL', K, 'queue', 'sweep')
  else
    redis.call('HSET', K, 'queue', numbers(), ...)
  end
  if watched > 0 and clock() < watched then redis.call('PUBLISH', K, '') end
end

-- tell sends a message to the session that an entry belongs to, and to nobody else.
local function tell(rest, text)
  redis.call('PUBLISH', string.match(K, '^(.*){') .. 's:' .. string.match(rest, '^%S+'), text)
end

-- forget removes the fields of an entry and the one that points to it. Scripts that make
-- the queue shorter call it before they write anything: HDEL works when memory is full,
-- and once a script has written something Redis lets it finish.
local function forget(id, pointer)
  dirty = true
  redis.call('HDEL', K, pointer, 'e:' .. id, 'b:' .. id)
end

-- unhold takes the holder out of slot k. The last holder moves there: slots 1..n are dense,
-- so that looking through the holders costs their number, however many came and went.
local function unhold(k, id, units)
  local moves = k < n and redis.call('HGET', K, 'h:' .. n)
  forget(id, 'h:' .. n)
  if moves then
    local s, u, expiry, _, rest = parse(redis.call('HGET', K, 'e:' .. moves))
    redis.call('HSET', K, 'h:' .. k, moves, 'e:' .. moves, pack(s, u, expiry, 'h' .. k, rest))
  end
  n, held = n - 1, held - units
end

-- drop takes an entry out, wherever it stands. A waiter leaves a gap, which head passes by
-- once: that is cheaper than to keep the waiters dense.
local function drop(id, entry)
  local _, units, _, place = parse(entry)
  local i = tonumber(string.sub(place, 2))
  if string.sub(place, 1, 1) == 'h' then return unhold(i, id, units) end
  forget(id, 'w:' .. i)
  if i == tail then tail = tail - 1 end
end

-- purge removes the holders that have expired. soon is a moment before which none can, so
-- that the holders are looked through once in two thirds of a TTL and not at every call.
--
-- Of very many holders a call looks at some, lest everybody else wait for it, and leaves in the
-- field 'sweep' where the next one goes on, and the least expiry so far. soon is then sweeping,
-- which is long ago: those who wait in front come back at once. From the last slot to the first,
-- because unhold puts the last holder into a slot that it makes free: that one has been looked
-- at, or was noted by nearer when it was granted.
local sweeping, mostSwept = 1, 500
local function purge()
  if n == 0 or clock() < soon then return end
  dirty = true
  local k, least = n, 9007199254740992
  if soon == sweeping then
    local at, before = string.match(redis.call('HGET', K, 'sweep') or '', '^(%d+) (%d+)$')
    if at then k, least = math.min(tonumber(at), n), tonumber(before) end
  end
  for _ = 1, math.min(k, mostSwept) do
    local id = redis.call('HGET', K, 'h:' .. k)
    local _, units, expiry = parse(redis.call('HGET', K, 'e:' .. id))
    if expiry <= now then unhold(k, id, units) else least = math.min(least, expiry) end
    k = k - 1
  end
  if k > 0 then
    soon = sweeping
    redis.call('HSET', K, 'sweep', k .. ' ' .. number(least))
  else
    if soon == sweeping then redis.call('HDEL', K, 'sweep') end
    soon = n == 0 and 0 or least
  end
end

-- nearer notes that a holder can expire at a moment that may be before soon: he is new, or his
-- own renewal has brought his expiry nearer. That happens when the server's clock is set back:
-- soon would else be a moment of the old clock, and until then nobody looked whether he has died.
local function nearer(expiry)
  dirty = true
  if soon ~= sweeping then
    soon = n == 0 and expiry or math.min(soon, expiry)
    return
  end
  local at, least = string.match(redis.call('HGET', K, 'sweep') or '', '^(%d+) (%d+)$')
  if at then redis.call('HSET', K, 'sweep', at .. ' ' .. number(math.min(tonumber(least), expiry))) end
end

-- grant puts an entry into the next slot and returns that field.
local function grant(units, expiry)
  nearer(expiry)
  n, held = n + 1, held + units
  return 'h:' .. n
end

-- promote lets the waiters in front hold who fit, in their order, and tells each. Waiters
-- that have expired are passed over here: before their turn they are in nobody's way. A
-- grant does not extend the expiry: who died while waiting costs what is left of its TTL.
local function promote()
  while head <= tail do
    local id = redis.call('HGET', K, 'w:' .. head)
    if id then
      local s, units, expiry, _, rest = parse(redis.call('HGET', K, 'e:' .. id))
      if expiry <= clock() then
        forget(id, 'w:' .. head)
      elseif held + units > cap then
        return
      else
        dirty = true
        redis.call('HDEL', K, 'w:' .. head)
        redis.call('HSET', K, grant(units, expiry), id, 'e:' .. id, pack(s, units, expiry, 'h' .. n, rest))
        tell(rest, id .. ' ' .. s)
      end
    end
    head = head + 1
  end
end

-- abandoned tells that nobody is there who lives, and removes the dead on the way. It stops at
-- the first that lives: whoever asks for another capacity in vain must not cost the others what
-- it takes to look through all of them. Each of the dead is met once.
local function abandoned()
  while n > 0 do
    local id = redis.call('HGET', K, 'h:' .. n) -- the last one: nobody has to move
    local _, units, expiry = parse(redis.call('HGET', K, 'e:' .. id))
    if expiry > clock() then return false end
    unhold(n, id, units)
  end
  soon = 0
  promote() -- passes over the dead in front
  return n == 0 and head > tail
end

-- retry is when the waiter at place should ask again, in microseconds; 0 if it need not.
-- The first few in line watch over the holders' expiry, which nobody announces. One would
-- do; more cover those who die together. All others learn by their renewals.
local function retry(place)
  local ahead = tonumber(string.sub(place, 2)) - head
  if ahead > 3 then return 0 end
  return math.max(soon - clock(), 0) + 1000 * (1 + ahead)
end
