-- enter: first.lua names the arguments
--
-- Mode "enter" makes the entry unless it exists, "try" makes it only if it holds at once, and
-- "ask" never makes it: "ask" is for a confirmed entry, which must not come back.
-- Answers: Seq of an entry that holds | wait Seq retry | busy owner again | closed left | gone |
-- mismatch capacity | other | foreign
--
-- again is 1 if expired holders may still block: of very many holders one call examines only
-- some. A "try" then asks again at once; a waiter asks again after retry.
local units, capacity = tonumber(ARGV[3]), tonumber(ARGV[4])

if last and m[2] then
  local owner, expiry, taken, all, rest = parseOne(m[2])
  if owner == id and expiry > now then -- a repeated request
    extendKey(ARGV[10]) -- before HSET: see deleteEntry
    putAlone(last)
    return last
  end
  if ARGV[1] == 'try' and owner ~= id and expiry > now and all == capacity and taken + units > all then
    return { 'busy', rest } -- not converted to a queue: that would make the holder's release slower
  end
end

if not load() then return { 'foreign' } end
if ARGV[9] ~= '' then -- the key has a hash of the name
  if (redis.call('HGET', K, 'name') or ARGV[9]) ~= ARGV[9] then return { 'other' } end
end

if mine then
  local s, u, expiry, place, rest = parse(mine)
  if expiry > now then
    extendKey(ARGV[10]) -- before HSET, as above
    redis.call('HSET', K, 'e:' .. id, pack(s, u, now + ttl, place, rest))
    if string.sub(place, 1, 1) == 'w' then
      purge()
      promote()
    elseif now + ttl < expiry then
      noteExpiry(now + ttl)
    end
    if dirty then save() end
    s, u, expiry, place = parse(redis.call('HGET', K, 'e:' .. id))
    if string.sub(place, 1, 1) == 'h' then return tonumber(s) end
    return { 'wait', tonumber(s), retry(place) }
  end
  removeEntry(id, mine)
  promote()
  save()
end
if ARGV[1] == 'ask' then return { 'gone' } end

if cap and cap ~= capacity and not removeExpired() then
  if dirty then save() end
  return { 'mismatch', cap }
end
local new = following(seq)
if not new then
  if dirty then save() end
  return exhausted()
end
cap = capacity
if head <= tail or held + units > cap then
  purge()
  promote()
end
if plain and n == 0 and head > tail and watched <= now and closed <= now then
  redis.call('HDEL', K, 'queue', 'sweep', 'watch')
  putAlone(new)
  keepName()
  return new
end
local fits = head > tail and held + units <= cap and closed <= now
if ARGV[1] == 'try' and not fits then
  if dirty then save() end
  local holder = redis.call('HGET', K, 'h:1')
  local _, _, _, _, rest = parse(holder and redis.call('HGET', K, 'e:' .. holder))
  if closed > now then return { 'closed', closed - now } end
  return { 'busy', rest or '', nextExpiry == inSweep and 1 or 0 }
end

local pointer, place
if fits then
  pointer = grant(units, now + ttl)
  place = 'h' .. n
else
  if head > tail then head, tail = 1, 0 end
  tail = tail + 1
  pointer, place = 'w:' .. tail, 'w' .. tail
end
local s = number(new)
save(pointer, id, 'hasp1', s .. '+', 'e:' .. id, pack(s, units, now + ttl, place, ARGV[6] .. ' ' .. ARGV[7]))
keepName()
if ARGV[8] ~= '' then redis.call('HSET', K, 'b:' .. id, '0:' .. ARGV[8]) end
if ARGV[9] ~= '' then redis.call('HSET', K, 'name', ARGV[9]) end
if fits then return new end
return { 'wait', new, retry(place) }
