-- leave: ARGV id evict note
--
-- Removes an entry and grants the next waiters. 1: the entry was there. That includes an expired
-- entry that no script has removed yet: no other client has held since. Whether the lease was
-- still valid is decided by its owner, by its own clock.
if not load() or not mine then return 0 end
local s, _, _, _, rest = parse(mine)
removeEntry(id, mine)
if head <= tail then
  purge()
  promote()
end
save()
if ARGV[3] then redis.call('HSET', K, 'evicted', ARGV[3]) end
if ARGV[2] ~= '' then notify(rest, id .. ' -' .. s) end
return 1
