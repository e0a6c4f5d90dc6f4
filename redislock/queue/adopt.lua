-- adopt: ARGV id old seq units capacity ttl keep rest
--
-- Gives the entry of another session that holds the id and the rest (session and people) of
-- this one, in its slot and at its Seq. 1: it is ours now, or was already; 0: there is no such
-- entry, or it is not what its new owner takes it for. Whoever asks second with the same old
-- id finds none. Its expiry is a whole TTL from now, as of an entry that is made: the new
-- owner counts from before it asked.
if not load() then return 0 end
local old = ARGV[2]
if mine then
  local s, _, expiry, place = parse(mine)
  return s == ARGV[3] and expiry > clock() and string.sub(place, 1, 1) == 'h' and 1 or 0
end
local s, units, expiry, place = parse(redis.call('HGET', K, 'e:' .. old))
if s ~= ARGV[3] or expiry <= clock() or string.sub(place, 1, 1) ~= 'h' then return 0 end
if units ~= tonumber(ARGV[4]) or cap ~= tonumber(ARGV[5]) then return 0 end
local value = redis.call('HGET', K, 'b:' .. old)
local ends = now + tonumber(ARGV[6])
lengthen(ARGV[7])
redis.call('HDEL', K, 'e:' .. old, 'b:' .. old) -- before HSET, for the reason given at forget
redis.call('HSET', K, 'h:' .. string.sub(place, 2), id, 'e:' .. id, pack(s, units, ends, place, ARGV[8]))
if value then -- its new owner counts his versions from the beginning
  redis.call('HSET', K, 'b:' .. id, '0' .. string.match(value, ':.*$'))
end
nearer(ends)
save()
return 1
