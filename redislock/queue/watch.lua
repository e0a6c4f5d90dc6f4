-- watch: ARGV - period keep
--
-- Has every change of the name published for the period. Answers the microseconds until the
-- next holder may expire, for no message announces that; 0 if there is no holder. Renewals do not
-- move nextExpiry, so purge does, before it is answered: a watcher would ask again at once for as
-- long as a holder renews.
if not load() then return { 'foreign' } end
local holders = n
granted = {}
purge()
promote()
watched = now + ARGV[2]
keepName(ARGV[3])
save(n == holders and not next(granted))
return n == 0 and 0 or math.max(nextExpiry - now, 0) + 1000
