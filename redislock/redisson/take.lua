-- take: ARGV me ttl keep owner forget
--
-- Redisson's RLock: a hash with one field, its holder, and the number of times it was
-- taken. Ours is taken once, however often an unanswered request is repeated. A second key has
-- the holder's ID and owner: Redisson's key has no room for them.
-- Answers: 1 token | 0 milliseconds-left holder [closed], as setnx/take.lua
local me, ttl = ARGV[1], ARGV[2]
local mine = redis.call('HEXISTS', lock, me) == 1
local closed = closedFor(ttl) -- also if it is held: who is refused must know of this server's mark
if not mine and redis.call('EXISTS', lock) == 1 then
  return { 0, redis.call('PTTL', lock), who() }
end
if not mine and closed > 0 then return { 0, closed, '', '', 'closed' } end
local number = token(mine, ARGV[3])
if not number then return exhausted() end
if not mine then redis.call('HINCRBY', lock, me, 1) end
redis.call('PEXPIRE', lock, ttl)
redis.call('SET', KEYS[3], me .. ' ' .. ARGV[4], 'PX', ARGV[5])
return { 1, number }
