-- The queue of one name, in one hash; docs/backends/redis.md lists its fields.
--
-- One key and not several, although a sorted set would find the earliest expiry by itself:
-- DEL, eviction or an operator's mistake then removes all of a name or none of it, and never
-- leaves entries without expiry or expiries without entries. Few fields and not many: each one
-- that is read or written costs as much as the rest of a short script.
--
-- Most locks are never contended. A holder without other entries is a single field, 'one',
-- which first.lua and last.lua write and remove. A second request converts it into the fields
-- of a queue, and a '+' behind the Seq says so. The next request that finds the name empty
-- converts it back.
--
-- Times are microseconds of this server's clock, and so are Seqs. Both stay below 2^53
-- until the year 2255, so they are exact in Lua's doubles. number() formats them, because Lua's
-- tostring keeps 14 of their 16 digits.
--
-- The script in front sets K, now (or leaves it nil), id (or leaves it nil if it asks for
-- no single entry) and closed: until when the server grants nothing, see mark.lua.
local dirty = false
local seq, cap, held, n, nextExpiry, head, tail
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

-- extendKey extends the key's expiry to ms from now and never shortens it: another client may
-- have a longer retention, or a TTL that is longer than our retention. It writes even if it
-- changes nothing: see deleteEntry.
local function extendKey(ms)
  redis.call('PEXPIRE', K, number(math.max(redis.call('PTTL', K), tonumber(ms))))
end

local function numbers()
  return cap .. ' ' .. held .. ' ' .. n .. ' ' .. number(nextExpiry) .. ' ' .. head .. ' ' .. tail
end

-- toQueue converts the only entry into a queue of one. HDEL comes first: see deleteEntry. The
-- entry's Seq is the name's last one, because no other entry has been made since.
local function toQueue(text)
  local owner, expiry, units, capacity, rest = parseOne(text)
  cap, held, n, nextExpiry = capacity, units, 1, expiry
  local entry = pack(number(seq), units, expiry, 'h1', rest)
  redis.call('HDEL', K, 'one')
  redis.call('HSET', K, 'hasp1', number(seq) .. '+', 'queue', numbers(), 'h:1', owner, 'e:' .. owner, entry)
  if owner == id then mine = entry end
end

-- load reads the name's numbers and the entry of id. false: hasp did not write this hash, for
-- it has no field hasp1. A key of another type raises WRONGTYPE.
local function load()
  local m = redis.call('HMGET', K, 'hasp1', 'queue', 'watch', 'e:' .. (id or ''), 'one')
  if not m[1] and redis.call('EXISTS', K) == 1 then return false end
  dirty, seq, mine = false, tonumber(string.match(m[1] or '0', '^%d+')), m[4]
  watched = tonumber(m[3] or 0)
  cap, held, n, nextExpiry, head, tail = string.match(m[2] or '', '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  cap, held, n, nextExpiry = tonumber(cap), tonumber(held or 0), tonumber(n or 0), tonumber(nextExpiry or 0)
  head, tail = tonumber(head or 1), tonumber(tail or 0)
  if m[5] then toQueue(m[5]) end
  return true
end

-- save writes what load read, together with further fields. A name without entries keeps its
-- last Seq, which the next one depends on, and forgets the last capacity. A client that watches
-- the name has stored until when it does; without one no message is published.
local function save(...)
  if n == 0 and head > tail then
    redis.call('HDEL', K, 'queue', 'sweep')
  else
    redis.call('HSET', K, 'queue', numbers(), ...)
  end
  if watched > 0 and clock() < watched then redis.call('PUBLISH', K, '') end
end

-- notify sends a message to the session of an entry, and to no other.
local function notify(rest, text)
  redis.call('PUBLISH', string.match(K, '^(.*){') .. 's:' .. string.match(rest, '^%S+'), text)
end

-- deleteEntry deletes the fields of an entry and its pointer. Scripts that make the queue
-- shorter call it before they write anything else: HDEL works when memory is full, and after
-- a script's first write Redis lets it finish.
local function deleteEntry(id, pointer)
  dirty = true
  redis.call('HDEL', K, pointer, 'e:' .. id, 'b:' .. id)
end

-- freeSlot removes the holder from slot k. The last holder moves there: slots 1..n are dense, so
-- that a pass over the holders costs their number, however many came and went before.
local function freeSlot(k, id, units)
  local moves = k < n and redis.call('HGET', K, 'h:' .. n)
  deleteEntry(id, 'h:' .. n)
  if moves then
    local s, u, expiry, _, rest = parse(redis.call('HGET', K, 'e:' .. moves))
    redis.call('HSET', K, 'h:' .. k, moves, 'e:' .. moves, pack(s, u, expiry, 'h' .. k, rest))
  end
  n, held = n - 1, held - units
end

-- removeEntry removes an entry from its place. A waiter leaves a gap, which head passes once: that is
-- cheaper than keeping the waiters dense.
local function removeEntry(id, entry)
  local _, units, _, place = parse(entry)
  local i = tonumber(string.sub(place, 2))
  if string.sub(place, 1, 1) == 'h' then return freeSlot(i, id, units) end
  deleteEntry(id, 'w:' .. i)
  if i == tail then tail = tail - 1 end
end

-- purge removes the holders that have expired. No holder expires before nextExpiry, so that purge
-- examines them once in two thirds of a TTL and not at every call.
--
-- Of very many holders one call examines sweepLimit, because a script blocks all other clients
-- of the server. It stores in the field 'sweep' where the next call continues, and the least
-- expiry so far. nextExpiry is then inSweep, a moment in the past: the waiters in front ask again at
-- once. The order is from the last slot to the first, because freeSlot moves the last holder into
-- a free slot: that holder has been examined already, or noteExpiry noted its expiry at its grant.
local inSweep, sweepLimit = 1, 500
local function purge()
  if n == 0 or clock() < nextExpiry then return end
  dirty = true
  local k, least = n, 9007199254740992
  if nextExpiry == inSweep then
    local at, before = string.match(redis.call('HGET', K, 'sweep') or '', '^(%d+) (%d+)$')
    if at then k, least = math.min(tonumber(at), n), tonumber(before) end
  end
  for _ = 1, math.min(k, sweepLimit) do
    local id = redis.call('HGET', K, 'h:' .. k)
    local _, units, expiry = parse(redis.call('HGET', K, 'e:' .. id))
    if expiry <= now then freeSlot(k, id, units) else least = math.min(least, expiry) end
    k = k - 1
  end
  if k > 0 then
    nextExpiry = inSweep
    redis.call('HSET', K, 'sweep', k .. ' ' .. number(least))
  else
    if nextExpiry == inSweep then redis.call('HDEL', K, 'sweep') end
    nextExpiry = n == 0 and 0 or least
  end
end

-- noteExpiry notes that a holder may expire before nextExpiry: it is new, or its renewal has set an
-- earlier expiry. The latter happens when the server's clock is set back: nextExpiry would otherwise
-- stay a moment of the old clock, and no call would look for expired holders until then.
local function noteExpiry(expiry)
  dirty = true
  if nextExpiry ~= inSweep then
    nextExpiry = n == 0 and expiry or math.min(nextExpiry, expiry)
    return
  end
  local at, least = string.match(redis.call('HGET', K, 'sweep') or '', '^(%d+) (%d+)$')
  if at then redis.call('HSET', K, 'sweep', at .. ' ' .. number(math.min(tonumber(least), expiry))) end
end

-- grant counts an entry into the next slot and returns the slot's field.
local function grant(units, expiry)
  noteExpiry(expiry)
  n, held = n + 1, held + units
  return 'h:' .. n
end

-- promote grants the waiters in front that fit, in their order, and notifies each. It removes
-- expired waiters only here: before their turn they block no one. A grant does not extend the
-- expiry: a client that died while it waited costs what is left of its TTL.
local function promote()
  while head <= tail do
    local id = redis.call('HGET', K, 'w:' .. head)
    if id then
      local s, units, expiry, _, rest = parse(redis.call('HGET', K, 'e:' .. id))
      if expiry <= clock() then
        deleteEntry(id, 'w:' .. head)
      elseif held + units > cap or closed > clock() then
        return
      else
        dirty = true
        redis.call('HDEL', K, 'w:' .. head)
        redis.call('HSET', K, grant(units, expiry), id, 'e:' .. id, pack(s, units, expiry, 'h' .. n, rest))
        notify(rest, id .. ' ' .. s)
      end
    end
    head = head + 1
  end
end

-- removeExpired reports whether no entry is live, and removes the expired ones on the way. It stops
-- at the first live entry: a request with a wrong capacity must not cost the others a pass over
-- all entries. Each expired entry is met once.
local function removeExpired()
  while n > 0 do
    local id = redis.call('HGET', K, 'h:' .. n) -- the last one: no other has to move
    local _, units, expiry = parse(redis.call('HGET', K, 'e:' .. id))
    if expiry > clock() then return false end
    freeSlot(n, id, units)
  end
  nextExpiry = 0
  promote() -- removes the expired waiters in front
  return n == 0 and head > tail
end

-- retry is when the waiter at place asks again, in microseconds; 0 if it need not. The first
-- four waiters watch the holders' expiry, which no message announces. One would be enough;
-- several cover waiters that die together. All others learn it by their renewals.
local function retry(place)
  local ahead = tonumber(string.sub(place, 2)) - head
  if ahead > 3 then return 0 end
  return math.max(nextExpiry - clock(), closed - clock(), 0) + 1000 * (1 + ahead)
end
