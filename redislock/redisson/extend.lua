-- extend: as setnx/extend.lua.
local lost = {}
noteTTL()
for i = 1, #ARGV - 1 do
  if redis.pcall('HEXISTS', KEYS[i], ARGV[i + 1]) == 1 then
    redis.call('PEXPIRE', KEYS[i], ARGV[1])
  else
    lost[#lost + 1] = i
  end
end
return lost
