-- extend: KEYS of locks, ARGV ttl, then the expected holder of each (see mine in common.lua).
-- Answers the numbers of the keys that it does not hold. A key of another type is not ours.
local lost = {}
noteTTL()
for i = 1, #ARGV - 1 do
  local value, me = redis.pcall('GET', KEYS[i]), ARGV[i + 1]
  if type(value) == 'string' and me ~= '' and string.sub(value, 1, #me) == me then
    redis.call('PEXPIRE', KEYS[i], ARGV[1])
  else
    lost[#lost + 1] = i
  end
end
return lost
