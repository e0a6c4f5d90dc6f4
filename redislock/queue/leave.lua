-- leave: ARGV id evict note
--
-- Removes an entry and grants whoever is next. 1: it was there. An entry past its expiry
-- that nobody has removed was there too: nobody else has held since, and whether its
-- owner may call that a valid lease is for the owner's own clock to say.
if not load() or not mine then return 0 end
local s, _, _, _, rest = parse(mine)
drop(id, mine)
if head <= tail then
  purge()
  promote()
end
save()
if ARGV[3] then redis.call('HSET', K, 'evicted', ARGV[3]) end
if ARGV[2] ~= '' then tell(rest, id .. ' -' .. s) end
return 1
