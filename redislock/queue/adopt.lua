-- adopt: ARGV id-and-session old seq ttl keep rest
--
-- Gives another session's held entry to this session: the entry gets the id and the rest
-- (session and owner) of the new one and keeps its place and its Seq. 1: it is ours now, or was
-- already. 0: there is no such entry, or its Seq, units or capacity differ from what the caller
-- expects. A second request with the same old id finds no entry. The expiry is a whole TTL from
-- now, as for a new entry: the new owner counts from before it asked.
--
-- A repeated request writes, too, although it changes nothing: the client asks with WAIT whether
-- the replicas have the entry, and in Redis 8 that waits for the writes of its own connection
-- alone.
if not load() then return 0 end
local new = id
if find() then
  local _, s, expiry = parse(mine)
  if s ~= ARGV[3] or expiry <= now or not holds() then return 0 end
  extendKey(ARGV[5])
  save(true)
  return 1
end
if redis.call('HEXISTS', K, 'e:' .. new) == 1 or one and string.sub(one, 1, #new + 1) == new .. ' ' then return 0 end -- another's
id, of = ARGV[2], ''
if not find() or not holds() then return 0 end
local _, s, expiry, units = parse(mine)
if s ~= ARGV[3] or expiry <= now or string.match(ARGV[6], '^%d+ %d+') ~= units .. ' ' .. cap then return 0 end
closed = closedUntil(now, tonumber(ARGV[4])) -- notes our TTL, too: no renewal may come before the next fault
if closed > now then return { closed - now } end -- its owner may have released it, and this server has forgotten that
local value = redis.call('HGET', K, 'b:' .. id)
local ends = now + ARGV[4]
extendKey(ARGV[5])
redis.call('HDEL', K, 'e:' .. id, 'b:' .. id) -- before HSET: see remove
replaceMine(new .. ' ' .. s .. ' ' .. number(ends) .. ' ' .. ARGV[6])
if at ~= 'one' then put('e:' .. new, at) end
if value then -- the new owner counts versions from 0
  put('b:' .. new, '0' .. string.match(value, ':.*$'))
  valued = 1
end
noteExpiry(ends)
save()
return 1
