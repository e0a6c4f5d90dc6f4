-- identity: ARGV text how
--
-- Answers the store's identity. A store without one takes text. A store that has one takes
-- text if how is "insist" and text is smaller: of several clients that insist, one prevails.
local there = redis.call('GET', KEYS[1])
if there and not (ARGV[2] == 'insist' and ARGV[1] < there) then return there end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]
