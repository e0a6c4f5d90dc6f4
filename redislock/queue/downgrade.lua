-- downgrade: ARGV id-and-session units
--
-- Makes an entry smaller, in its place and at its Seq, and grants the waiters that now fit
-- beside it, as leave does with all units. 0: the entry is gone. The script
-- never makes an entry larger, so a repeated or late request changes nothing. If the server refuses
-- the first write because memory is full, the whole request is refused.
--
-- The owner knows that its entry holds, also if this server has forgotten the grant: see publish.
-- Such an entry waits, and counts with fewer units when its turn comes.
if not load() or not find() then return 0 end
local _, s, expiry, units, rest = parse(mine)
if expiry <= now then return 0 end
local less = tonumber(ARGV[2])
if less < units then
  replaceMine(pack(id, s, expiry, less, rest))
  if holds() then held = held - (units - less) end
  if head <= tail then
    purge()
    promote()
  end
  save()
end
return 1
