-- give: ARGV me waiter channels most
--
-- Deletes the lock if it is ours, and wakes one of hasp's waiters: the one that has waited
-- longest and whose session listens. In a cluster PUBLISH counts the listeners of one node
-- only, so most limits the attempts. The waiter behind it is told to try a little later: if the
-- first has just died, no other would try.
if ARGV[2] ~= '' then redis.call('ZREM', waiters, ARGV[2]) end
if not mine(redis.call('GET', lock), ARGV[1]) then return 0 end
redis.call('DEL', lock)

local function wake(waiter, how)
  local session, id = string.match(waiter or '', '^(%S+) (%S+)$')
  return session and redis.call('PUBLISH', ARGV[3] .. session, id .. how)
end

for _ = 1, tonumber(ARGV[4]) do
  local listeners = wake(redis.call('ZPOPMIN', waiters)[1], '')
  if not listeners then return 1 end
  if listeners > 0 then break end
end
wake(redis.call('ZRANGE', waiters, 0, 0)[1], ' later')
return 1
