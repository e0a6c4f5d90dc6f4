-- left: KEYS mark. For how many microseconds the server grants nothing, without writing the mark: a
-- reader may have no right to write. A server that has lost its mark is known to be one only when the
-- next request has found that.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local run, till, longest = string.match(redis.call('GET', KEYS[1]) or '', '^(%x+) (%d+) (%d+)$')
if not run then return 0 end
local known = RUN or string.match(marked('server'), 'run_id:(%x+)') or run -- see closedUntil
if run ~= known then return tonumber(longest) end
return math.max(0, till - now)
