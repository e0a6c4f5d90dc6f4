-- The queue of one name, in one hash; docs/internals/redis.md lists its fields.
--
-- One key and not several, although a sorted set would find the earliest expiry by itself:
-- DEL, eviction or an operator's mistake then removes all of a name or none of it, and never
-- leaves entries without expiry or expiries without entries. Few fields and not many, and few
-- commands: each one costs as much as the rest of a short script.
--
-- The only holder is in the field 'one', whether or not others wait. Without waiters the numbers of
-- the queue follow from it: enterstart.lua writes hasp2 and this field, leavestart.lua removes it.
-- Several holders have slots.
--
-- Times are microseconds of this server's clock, and so are Seqs. Both stay below 2^53
-- until the year 2255, so they are exact in Lua's doubles. number() of mark.lua formats them, because
-- Lua's tostring keeps 14 of their 16 digits.
--
-- The script in front sets K, now, id (or leaves it nil if it asks for no single entry) and closed:
-- until when the server grants nothing, see mark.lua.
local seq, kept -- the last Seq; until when the key is kept, in milliseconds
local cap, held, n, nextExpiry, head, tail
local watched -- until when
local valued  -- 1: an entry may have a value
local drawn   -- the last Seq that was drawn at a grant, while waiters from before are there: see promote
local one     -- the entry of the only holder, if it has no slot
local header, was -- 'hasp2' and 'one' in the store
local dirty, extend -- save has something to write; the key's expiry, too
local mine, at -- the entry of id, and its field
local granted -- if it is a table: the Seqs of those that were granted, by ID

-- An entry is "ID Seq expiry units rest"; rest is "capacity session since owner".
local function parse(entry)
  local who, s, expiry, units, rest = string.match(entry or '', '^(%S+) (%d+) (%d+) (%d+) (.*)$')
  return who, s, tonumber(expiry or 0), tonumber(units or 0), rest
end

local function pack(who, s, expiry, units, rest)
  return who .. ' ' .. s .. ' ' .. number(expiry) .. ' ' .. units .. ' ' .. rest
end

-- load takes what is in the fields 'hasp2' and 'one', and reads them if m is nil. false: hasp did
-- not write this hash. A key of another type raises WRONGTYPE.
local function load(m)
  m = m or redis.call('HMGET', K, 'hasp2', 'one')
  if not m[1] and redis.call('EXISTS', K) == 1 then return false end
  local s, k, more = string.match(m[1] or '0 0', '^(%d+) (%d+)(.*)$')
  if not s then return false end
  header, was, one, dirty, extend = m[1], m[2], m[2], false, false
  seq, kept, valued, watched, drawn, head, tail = tonumber(s), tonumber(k), 0, 0, 0, 1, 0
  cap, held, n, nextExpiry = nil, 0, 0, 0
  if more ~= '' then
    local c, u, k, e, i, j, w, v, d = string.match(more, '^ (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d) ?(%d*)$')
    if not c then return false end
    held, n, nextExpiry, head, tail = tonumber(u), tonumber(k), tonumber(e), tonumber(i), tonumber(j)
    watched, valued, drawn = tonumber(w), tonumber(v), tonumber(d) or 0
    if n > 0 or head <= tail then cap = tonumber(c) end
  elseif one then
    local _, _, expiry, units, rest = parse(one)
    cap, held, n, nextExpiry = tonumber(string.match(rest, '^%d+')), units, 1, expiry
  end
  return true
end

-- of is the session that the entry of id must be of, '' if it may be any: a client of hasp serve
-- can choose an id that another has.
local of = ''
if id then id, of = string.match(id, '^(%S+) ?(%S*)$') end

local function sessionOf(entry) return string.match(entry, '^%S+ %d+ %d+ %d+ %d+ (%S+) ') end

-- find reads the entry of id. place is what the field 'e:ID' says, nil if that was not read.
local function find(place)
  if one and string.sub(one, 1, #id + 1) == id .. ' ' then
    mine, at = one, 'one'
  else
    at = place
    if at == nil then at = redis.call('HGET', K, 'e:' .. id) end
    mine = at and redis.call('HGET', K, at)
  end
  if mine and of ~= '' and sessionOf(mine) ~= of then mine, at = nil, nil end
  return mine
end

local function holds() return string.sub(at, 1, 2) ~= 'w:' end

-- keepName has save extend the key's expiry to ms from now. It sets a sixteenth more, so that a
-- busy name does not pay for it each time, and never shortens it: another client may have a longer
-- retention, or a TTL that is longer than our retention.
local function keepName(ms)
  local keep = now / 1000 + ms
  if kept < keep then
    kept, extend = math.floor(keep + ms / 16), true
  end
end

-- extendKey does so at once, and writes even if it changes nothing: see remove.
local function extendKey(ms)
  keepName(ms)
  redis.call('PEXPIREAT', K, number(kept))
  dirty, extend = dirty or extend, false
end

-- Fields to be written are collected, and written by one command. Who reads a slot, or removes one,
-- calls flush before.
local set = {}

local function flush()
  if #set > 0 then
    redis.call('HSET', K, unpack(set))
    set = {}
  end
end

local function put(field, value)
  set[#set + 1] = field
  set[#set + 1] = value
  dirty = true
  if #set > 1000 then flush() end -- unpack has its limits
end

-- During a search of very many holders for expired ones nextExpiry is inSweep: see purge.
local inSweep, sweepLimit = 1, 500

local function endSweep()
  if nextExpiry == inSweep then redis.call('HDEL', K, 'sweep') end
end

-- save writes what has changed. A name without entries keeps its last Seq, which the next one
-- depends on, and forgets the last capacity. A client that watches the name has stored until when
-- it does; without one no message is published. HDEL comes first: see remove.
local function save(quiet)
  if n == 0 then endSweep() nextExpiry = 0 end
  if was and not one then redis.call('HDEL', K, 'one') end
  local text = number(seq) .. ' ' .. number(kept)
  local waiting, watching = head <= tail, watched > now
  if n == 0 and not waiting then valued = 0 end
  if waiting or watching or valued == 1 or n > 0 and not one then
    text = text .. ' ' .. (cap or 0) .. ' ' .. held .. ' ' .. n .. ' ' .. number(nextExpiry)
      .. ' ' .. head .. ' ' .. tail .. ' ' .. number(watched) .. ' ' .. valued
    if waiting and drawn > 0 then text = text .. ' ' .. number(drawn) end
  end
  if text ~= header then put('hasp2', text) end
  if one and one ~= was then put('one', one) end
  flush()
  if extend then redis.call('PEXPIREAT', K, number(kept)) end
  header, was, dirty, extend = text, one, false, false
  if watching and not quiet then redis.call('PUBLISH', K, '') end
end

-- notify sends a message to the session of an entry, and to no other.
local function notify(rest, text)
  redis.call('PUBLISH', string.sub(K, 1, string.find(K, '{', 1, true) - 1) .. 's:' .. string.match(rest, '^%d+ (%S+)'), text)
end

-- remove deletes fields of an entry. Scripts that make the queue shorter call it before they write
-- anything else: HDEL works when memory is full, and after a script's first write Redis lets it
-- finish.
local function remove(who, field)
  dirty = true
  redis.call('HDEL', K, field, 'e:' .. who, 'b:' .. who, 'k:' .. who)
end

-- freeOne removes the only holder. save removes its field, unless another holder takes it.
local function freeOne(who)
  if valued == 1 then redis.call('HDEL', K, 'b:' .. who) end
  one, n, held, dirty = nil, 0, 0, true
end

-- freeSlot removes the holder from slot k. The last holder moves there: slots 1..n are dense, so
-- that a pass over the holders costs their number, however many came and went before.
local function freeSlot(k, who, units)
  flush()
  local last = k < n and redis.call('HGET', K, 'h:' .. n)
  remove(who, 'h:' .. n)
  if last then redis.call('HSET', K, 'h:' .. k, last, 'e:' .. string.match(last, '^%S+'), 'h:' .. k) end
  n, held = n - 1, held - units
end

-- replaceMine writes the entry of id anew, in its place.
local function replaceMine(text)
  mine, dirty = text, true
  if at == 'one' then one = text else put(at, text) end
end

-- removeMine removes the entry of id from its place. A waiter leaves a gap, which head passes once:
-- that is cheaper than keeping the waiters dense.
local function removeMine()
  local who, _, _, units = parse(mine)
  local i = tonumber(string.sub(at, 3))
  if at == 'one' then return freeOne(who) end
  if holds() then return freeSlot(i, who, units) end
  remove(who, at)
  if i == tail then tail = tail - 1 end
end

-- purge removes the holders that have expired. No holder expires before nextExpiry, so that purge
-- examines them once in two thirds of a TTL and not at every call.
--
-- Of very many holders one call examines sweepLimit, because a script blocks all other clients of
-- the server. It stores in the field 'sweep' where the next call continues, and the least expiry so
-- far. nextExpiry is then inSweep, a moment in the past: the waiters in front ask again at once.
-- The order is from the last slot to the first, because freeSlot moves the last holder into a free
-- slot: that holder has been examined already, or noteExpiry noted its expiry at its grant.
local function purge()
  if n == 0 or now < nextExpiry then return end
  dirty = true
  if one then
    local who, _, expiry = parse(one)
    nextExpiry = expiry
    if expiry <= now then freeOne(who) end
    return
  end
  flush()
  local k, least = n, 9007199254740992
  if nextExpiry == inSweep then
    local place, before = string.match(redis.call('HGET', K, 'sweep') or '', '^(%d+) (%d+)$')
    if place then k, least = math.min(tonumber(place), n), tonumber(before) end
  end
  for _ = 1, math.min(k, sweepLimit) do
    local who, _, expiry, units = parse(redis.call('HGET', K, 'h:' .. k))
    if expiry <= now then freeSlot(k, who, units) else least = math.min(least, expiry) end
    k = k - 1
  end
  if k > 0 then
    nextExpiry = inSweep
    put('sweep', k .. ' ' .. number(least))
  else
    endSweep()
    nextExpiry = n == 0 and 0 or least
  end
end

-- noteExpiry notes that a holder may expire before nextExpiry: it is new, or its renewal has set an
-- earlier expiry. The latter happens when the server's clock is set back: nextExpiry would
-- otherwise stay a moment of the old clock, and no call would look for expired holders until then.
local function noteExpiry(expiry)
  dirty = true
  if n == 0 then endSweep() nextExpiry = expiry end
  if nextExpiry ~= inSweep then
    nextExpiry = math.min(nextExpiry, expiry)
    return
  end
  flush()
  local place, least = string.match(redis.call('HGET', K, 'sweep') or '', '^(%d+) (%d+)$')
  if place then put('sweep', place .. ' ' .. number(math.min(tonumber(least), expiry))) end
end

-- grant makes an entry a holder: the only one in the field 'one'. The second one moves the first
-- one to a slot.
local function grant(who, s, expiry, units, text)
  noteExpiry(expiry)
  local place = 'one'
  if n == 0 then
    one = text
  else
    if one then
      put('h:1', one)
      put('e:' .. string.match(one, '^%S+'), 'h:1')
      one = nil
    end
    place = 'h:' .. n + 1
    put(place, text)
    put('e:' .. who, place)
  end
  n, held = n + 1, held + units
  if who == id then mine, at = text, place end
  if granted then granted[who] = tonumber(s) end
end

-- promote grants the waiters in front that fit, in their order, and notifies each. It removes
-- expired waiters only here: before their turn they block no one. A grant does not extend the
-- expiry: a client that died while it waited costs what is left of its TTL.
--
-- A waiter that came before the end of a quarantine gets a new Seq. Another master may have granted
-- until then, with tokens of its time, and a resource that has seen one of these would refuse an
-- older one. So does a waiter that came between such a waiter and its grant. Not an entry whose
-- owner has held it since before: it has the token that it has (the field 'k:ID', which its renewal
-- writes).
local function promote()
  flush()
  while head <= tail do
    local text = redis.call('HGET', K, 'w:' .. head)
    if text then
      local who, s, expiry, units, rest = parse(text)
      if expiry <= now then
        remove(who, 'w:' .. head)
      elseif held + units > cap or closed > now then
        return
      else
        -- Its value stays.
        redis.call('HDEL', K, 'w:' .. head, 'e:' .. who)
        local new = math.max(seq + 1, now)
        if tonumber(s) > math.max(closed, drawn) then
          drawn = 0 -- all others came later
        elseif redis.call('HDEL', K, 'k:' .. who) == 0 and new < 9007199254740992 then
          seq, drawn, s = new, new, number(new)
          text = pack(who, s, expiry, units, rest)
        end
        grant(who, s, expiry, units, text)
        notify(rest, who .. ' ' .. s)
      end
    end
    head = head + 1
    dirty = true
    if held == cap then return end -- no other fits, and whether the next one lives does not matter
  end
end

-- removeExpired reports whether no entry is live, and removes the expired ones on the way. It stops
-- at the first live entry: a request with a wrong capacity must not cost the others a pass over
-- all entries. Each expired entry is met once.
local function removeExpired()
  while n > 0 do
    flush()
    local who, _, expiry, units = parse(one or redis.call('HGET', K, 'h:' .. n)) -- the last one: no other has to move
    if expiry > now then return false end
    if one then freeOne(who) else freeSlot(n, who, units) end
  end
  promote() -- removes the expired waiters in front
  return n == 0 and head > tail
end

-- retry is when the waiter at a place asks again, in microseconds; 0 if it need not. The first
-- four waiters watch the holders' expiry, which no message announces. One would be enough;
-- several cover waiters that die together. All others learn it by their renewals.
local function retry(place)
  local ahead = tonumber(string.sub(place, 3)) - head
  if ahead > 3 then return 0 end
  return math.max(nextExpiry - now, closed - now, 0) + 1000 * (1 + ahead)
end
