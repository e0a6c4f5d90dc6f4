-- leave: ARGV id-and-session, or id note
--
-- Removes an entry and grants the next waiters. 1: the entry was there. That includes an expired
-- entry that no script has removed yet: no other client has held since. Whether the lease was still
-- valid is decided by its owner, by its own clock. With a note, which may be empty, it is evicted.
if not load(m) or not find() then return 0 end
local _, s, _, _, rest = parse(mine)
removeMine()
if head <= tail then
  purge()
  promote()
end
if (ARGV[2] or '') ~= '' then put('evicted', ARGV[2]) end
save()
if ARGV[2] then notify(rest, id .. ' -' .. s) end
return 1
