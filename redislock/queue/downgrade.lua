-- downgrade: ARGV id units
--
-- Makes a held entry smaller, in its place and at its Seq, and grants the waiters that now fit
-- beside it, as leave does with all units. 0: the entry does not hold, or is gone. The script
-- never makes an entry larger, so a repeated or late request changes nothing. If the server refuses
-- the first write because memory is full, the whole request is refused.
if not load() or not find() or not holds() then return 0 end
local _, s, expiry, units, rest = parse(mine)
if expiry <= now then return 0 end
local less = tonumber(ARGV[2])
if less < units then
  replaceMine(pack(id, s, expiry, less, rest))
  held = held - (units - less)
  if head <= tail then
    purge()
    promote()
  end
  save()
end
return 1
