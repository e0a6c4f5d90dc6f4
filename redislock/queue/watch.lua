-- watch: ARGV - period keep
-- Has every change of the name published for the period. Answers when the next holder can
-- expire, in microseconds from now, which nobody publishes; 0 if there is none.
if not load() then return { 'foreign' } end
redis.call('HSET', K, 'hasp1', number(seq) .. '+', 'watch', number(clock() + ARGV[2]))
lengthen(ARGV[3])
return n == 0 and 0 or math.max(soon - now, 0) + 1000
