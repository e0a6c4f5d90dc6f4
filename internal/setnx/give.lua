-- give: ARGV me waiter channels most
--
-- Deletes the lock if it is ours, and wakes one of our own waiters: the longest waiting one
-- whose session listens. On a cluster the number of listeners is known for one node
-- only, hence most. The one behind is told, too, to look a little later: should the first
-- have died just now, no other would.
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
