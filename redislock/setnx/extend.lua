-- extend: KEYS of locks, ARGV ttl, then who should hold each. Answers the numbers of those
-- that somebody else holds, or nobody. Another type at the key is somebody else's.
local lost = {}
for i = 1, #KEYS do
  if redis.pcall('GET', KEYS[i]) == ARGV[i + 1] then
    redis.call('PEXPIRE', KEYS[i], ARGV[1])
  else
    lost[#lost + 1] = i
  end
end
return lost
