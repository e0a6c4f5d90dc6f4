-- give: ARGV me channel
--
-- Deletes the lock if it is ours, and notifies the waiters, in Go or in Java, as Redisson does.
if redis.call('HEXISTS', lock, ARGV[1]) == 0 then return 0 end
redis.call('DEL', lock, KEYS[3])
redis.call('PUBLISH', ARGV[2], '0')
return 1
