-- left: for how many microseconds the server grants nothing. It writes no mark: a reader may have
-- no right to write. A client that was told nothing yet knows of a lost mark when its next request
-- has found that.
if not mark or not string.find(known, '^.[^;]') and redis.call('EXISTS', mark) == 0 then return 0 end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
return math.max(0, closedUntil(now) - now)
