-- identity: ARGV text how
--
-- Answers the store's name. A store that has no name takes text; one that has, too, if
-- how is "insist" and text is smaller, so that of several that insist one prevails.
local there = redis.call('GET', KEYS[1])
if there and not (ARGV[2] == 'insist' and ARGV[1] < there) then return there end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]
