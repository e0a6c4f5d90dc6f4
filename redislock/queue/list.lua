-- list: the server's time and the whole hash; whoever asked sorts it out.
if not load() then return { 'foreign' } end
return { number(clock()), redis.call('HGETALL', K) }
