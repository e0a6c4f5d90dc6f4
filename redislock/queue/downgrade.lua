-- downgrade: ARGV id units
--
-- Makes an entry that holds smaller, in its place and at its Seq, and grants whoever fits in
-- beside it: what leave does, with a part of the units. 0: it does not hold, or is gone. It
-- never makes an entry larger, so a request that is repeated or late changes nothing. The
-- first thing written is the entry: refused for want of memory, all of it is refused.
if not load() then return 0 end
local s, units, expiry, place, rest = parse(mine)
if expiry <= clock() or string.sub(place, 1, 1) ~= 'h' then return 0 end
local less = tonumber(ARGV[2])
if less < units then
  redis.call('HSET', K, 'e:' .. id, pack(s, less, expiry, place, rest))
  held = held - (units - less)
  if head <= tail then
    purge()
    promote()
  end
  save()
end
return 1
