-- enter: enterstart.lua names the arguments
--
-- Mode "enter", the default, makes the entry unless it exists, "try" makes it only if it holds at
-- once, and "ask" never makes it: "ask" is for a confirmed entry, which must not come back.
-- Answers: Seq of an entry that holds | wait Seq retry place | busy owner again | closed left | gone |
-- mismatch capacity | other | foreign
--
-- again is 1 if expired holders may still block: of very many holders one call examines only
-- some. A "try" then asks again at once; a waiter asks again after retry.
local units, capacity = string.match(ARGV[4], '^(%d+) (%d+)')
units, capacity = tonumber(units), tonumber(capacity)
local value, name = ARGV[6] or '', ARGV[7] or ''

if not load(m) then return { 'foreign' } end
if name ~= '' and (redis.call('HGET', K, 'name') or name) ~= name then return { 'other' } end

if find(m[3]) then -- a repeated request
  local _, s, expiry, u, rest = parse(mine)
  if expiry > now then
    if sessionOf(mine) ~= string.match(ARGV[4], '^%d+ %d+ (%S+) ') then return { 'gone' } end -- another's id
    extendKey(ARGV[3]) -- before HSET: see remove
    replaceMine(pack(id, s, now + ttl, u, rest))
    if not holds() then
      purge()
      promote()
    elseif now + ttl < expiry then
      noteExpiry(now + ttl)
    end
    save()
    _, s = parse(mine) -- promote may have changed it
    if holds() then return tonumber(s) end
    return { 'wait', tonumber(s), retry(at) }
  end
  removeMine()
  promote()
end
if ARGV[5] == 'ask' then
  if dirty then save() end
  return { 'gone' }
end

if cap and cap ~= capacity and not removeExpired() then
  if dirty then save() end
  return { 'mismatch', cap }
end
cap = capacity
if head <= tail or held + units > cap then
  purge()
  if held < cap then promote() end
end
local fits = head > tail and held + units <= cap and closed <= now
if ARGV[5] == 'try' and not fits then
  if dirty then save() end
  if closed > now then return { 'closed', closed - now } end
  local _, _, _, _, rest = parse(one or redis.call('HGET', K, 'h:1'))
  return { 'busy', rest or '', nextExpiry == inSweep and 1 or 0 }
end

-- The token after seq, drawn last: promote may have drawn, too. From 2^53 on a number and the next
-- one are the same in Lua, and every grant would repeat the token of the one before.
local new = math.max(seq + 1, now)
if new >= 9007199254740992 then
  if dirty then save() end
  return redis.error_reply('EXHAUSTED the tokens of this name have come to their end at 2^53: remove the key ' .. K)
end
seq = new
local s = number(new)
local text = id .. ' ' .. s .. ' ' .. number(now + ttl) .. ' ' .. ARGV[4]
if fits then
  grant(id, s, now + ttl, units, text)
else
  if head > tail then head, tail = 1, 0 end
  tail = tail + 1
  at = 'w:' .. tail
  put(at, text)
  put('e:' .. id, at)
end
if value ~= '' then
  put('b:' .. id, '0:' .. value)
  valued = 1
end
if name ~= '' then put('name', name) end
keepName(ARGV[3])
save()
if fits then return new end
return { 'wait', new, retry(at), nth(head, tonumber(string.sub(at, 3)) - head) }
