-- publish: ARGV me version rest
--
-- Replaces the text behind me by rest, which begins with version. A newer version stays: two
-- requests of one holder may arrive in reverse order.
local me = ARGV[1]
local value = redis.call('GET', lock)
if not mine(value, me) then return 0 end
local there = tonumber(string.match(value, '^%d+', #me + 1))
local stays = there and there >= tonumber(ARGV[2])
redis.call('SET', lock, stays and value or me .. ARGV[3], 'KEEPTTL') -- also if it changes nothing: see queue/adopt.lua
return 1
