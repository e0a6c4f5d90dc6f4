-- downgrade: ARGV id units
--
-- Makes a held entry smaller, in its place and at its Seq, and grants the waiters that now fit
-- beside it, as leave does with all units. 0: the entry does not hold, or is gone. The script
-- never makes an entry larger, so a repeated or late request changes nothing. The entry is the
-- first write: if the server refuses it because memory is full, the whole request is refused.
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
