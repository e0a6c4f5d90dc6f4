-- take: ARGV me ttl keep waiter since [rest] [yield]
--
-- Takes the lock if it is free, as SET NX PX does, or finds that it is ours already. Answers: 1
-- token | 0 milliseconds-left holder since [closed]. waiter, if not empty, is added to the waiters
-- to wake, ordered by since, which the answer returns for the next attempt. since is '' in the
-- first attempt, and '?' in another one if no answer has told it. rest is written behind me. With
-- yield a free lock is left to the waiters: holder is '', and in place of the time left is the
-- number of those in front. With closed the server grants nothing for so long: see mark.lua.
local me, ttl, waiter = ARGV[1], ARGV[2], ARGV[4]
local holder = redis.call('GET', lock)
local closed = closedFor(ttl)
local yielded = not holder and ARGV[7] == 'yield' and redis.call('EXISTS', waiters) == 1
if yielded or holder and not mine(holder, me) or not holder and closed > 0 then
  local since = ARGV[5]
  if waiter ~= '' then
    if since == '' or since == '?' then since = string.format('%.0f', micros()) end
    redis.call('ZADD', waiters, since, waiter)
    -- As long as any of the waiters may sleep: twice its own TTL, or until the holder's key
    -- expires, when the waiter tries again without being woken. That has some jitter, hence
    -- twice. Ten seconds are for keys without expiry.
    redis.call('PEXPIRE', waiters, longer(waiters, math.max(2 * ttl, 2 * redis.call('PTTL', lock), 10000)))
  end
  if not holder and closed > 0 then return { 0, closed, '', since, 'closed' } end
  if yielded then return { 0, redis.call('ZRANK', waiters, waiter) or 0, '', since } end
  return { 0, redis.call('PTTL', lock), holder, since }
end
local number = token(holder, ARGV[3])
if not number then return exhausted() end
if holder then
  redis.call('PEXPIRE', lock, ttl)
else
  redis.call('SET', lock, me .. (ARGV[6] or ''), 'PX', ttl)
end
if waiter ~= '' and ARGV[5] ~= '' then redis.call('ZREM', waiters, waiter) end
return { 1, number }
