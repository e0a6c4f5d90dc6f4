-- adopt: ARGV me ttl old seq keep
--
-- Gives the lock of the holder whose ID is old to me, which begins with another ID, in one
-- step: SET without NX leaves no moment in which a SET NX would find the key free.
-- 1: it is ours now, or was already. 0: old does not have it, or has it with another token. The
-- token is compared if the counter still exists; the ID alone is unique.
local me, ttl = ARGV[1], ARGV[2]
local holder = redis.call('GET', lock)
if not mine(holder, me) then
  local last = ARGV[5] ~= '0' and redis.call('GET', counter)
  if not mine(holder, ARGV[3] .. ' ') or last and last ~= ARGV[4] then return 0 end
  local closed = closedFor(ttl)
  if closed > 0 then return { closed * 1000 } end -- its owner may have released it: see queue/adopt.lua
end
redis.call('SET', lock, me, 'PX', ttl)
return 1
