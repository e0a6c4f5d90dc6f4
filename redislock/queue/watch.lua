-- watch: ARGV - period keep
--
-- Has every change of the name published for the period. Answers the microseconds until the
-- next holder may expire, for no message announces that; 0 if there is no holder.
if not load() then return { 'foreign' } end
watched = now + ARGV[2]
keepName(ARGV[3])
save(true)
return n == 0 and 0 or math.max(nextExpiry - now, 0) + 1000
