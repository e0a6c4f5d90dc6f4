-- publish: ARGV id-and-session version value
--
-- Replaces the value of an entry, which its owner knows to hold. 0: it is gone. A newer version
-- stays: of two requests of one holder the first may arrive after the second, which is already
-- confirmed.
--
-- A server that has forgotten a grant has the entry among the waiters, where it is the first, and
-- grants nothing as long as another may believe that it holds: see mark.lua. So the owner holds,
-- and renews the entry. If it were told 0, it would give the lock up and go on renewing an entry
-- that keeps the name taken.
if not load() or not find() then return 0 end
local _, _, expiry = parse(mine)
if expiry <= now then return 0 end
local present = redis.call('HGET', K, 'b:' .. id)
local there = tonumber(string.match(present or '', '^%d+'))
local stays = there and there >= tonumber(ARGV[2])
put('b:' .. id, stays and present or ARGV[2] .. ':' .. ARGV[3]) -- also if it changes nothing: see adopt.lua
valued = 1
save(stays)
return 1
