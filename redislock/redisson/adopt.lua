-- adopt: ARGV me ttl old seq keep owner forget
--
-- As setnx/adopt.lua: the field of the holder whose stored ID is old becomes me. The new field
-- is written before the old one is deleted: an empty hash would be a free lock.
local me, ttl = ARGV[1], ARGV[2]
if redis.call('HEXISTS', lock, me) == 0 then
  local last = ARGV[5] ~= '0' and redis.call('GET', counter)
  if not mine(who(), ARGV[3] .. ' ') or last and last ~= ARGV[4] then return 0 end
  local closed = closedFor(ttl)
  if closed > 0 then return { closed * 1000 } end
  local old = redis.call('HKEYS', lock)[1]
  redis.call('HINCRBY', lock, me, 1)
  redis.call('HDEL', lock, old)
end
redis.call('PEXPIRE', lock, ttl)
redis.call('SET', KEYS[3], me .. ' ' .. ARGV[6], 'PX', ARGV[7])
return 1
