-- adopt: ARGV id old seq units capacity ttl keep rest
--
-- Gives another session's held entry to this session: the entry gets the id and the rest
-- (session and owner) of the new one and keeps its slot and its Seq. 1: it is ours now, or was
-- already. 0: there is no such entry, or its Seq, units or capacity differ from what the caller
-- expects. A second request with the same old id finds no entry. The expiry is a whole TTL from
-- now, as for a new entry: the new owner counts from before it asked.
if not load() then return 0 end
local old = ARGV[2]
if mine then
  local s, _, expiry, place = parse(mine)
  return s == ARGV[3] and expiry > clock() and string.sub(place, 1, 1) == 'h' and 1 or 0
end
local s, units, expiry, place = parse(redis.call('HGET', K, 'e:' .. old))
if s ~= ARGV[3] or expiry <= clock() or string.sub(place, 1, 1) ~= 'h' then return 0 end
if units ~= tonumber(ARGV[4]) or cap ~= tonumber(ARGV[5]) then return 0 end
if closed > now then return { closed - now } end -- its exporter may have released it, and this server has forgotten that
local value = redis.call('HGET', K, 'b:' .. old)
local ends = now + tonumber(ARGV[6])
extendKey(ARGV[7])
redis.call('HDEL', K, 'e:' .. old, 'b:' .. old) -- before HSET: see deleteEntry
redis.call('HSET', K, 'h:' .. string.sub(place, 2), id, 'e:' .. id, pack(s, units, ends, place, ARGV[8]))
if value then -- the new owner counts versions from 0
  redis.call('HSET', K, 'b:' .. id, '0' .. string.match(value, ':.*$'))
end
noteExpiry(ends)
save()
return 1
