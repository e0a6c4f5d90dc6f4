-- extend: KEYS of locks, ARGV ttl, then who should hold each (see mine in common). Answers the numbers of those
-- that another holds, or none. Another type at the key is another's.
local lost = {}
for i = 1, #KEYS do
  local value, me = redis.pcall('GET', KEYS[i]), ARGV[i + 1]
  if type(value) == 'string' and me ~= '' and string.sub(value, 1, #me) == me then
    redis.call('PEXPIRE', KEYS[i], ARGV[1])
  else
    lost[#lost + 1] = i
  end
end
return lost
