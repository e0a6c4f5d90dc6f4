-- member: ARGV own set how
--
-- Answers the server's identity, as identity.lua does, and that of the set of servers that it
-- belongs to, or ''. A server without an identity takes own, one without a set takes set; with
-- "replace" it takes set in any case. An empty text is never taken.
local names = {}
for i = 1, 2 do
  names[i] = redis.call('GET', KEYS[i])
  if ARGV[i] ~= '' and (not names[i] or i == 2 and ARGV[3] == 'replace') then
    redis.call('SET', KEYS[i], ARGV[i])
    names[i] = ARGV[i]
  end
end
return { names[1] or '', names[2] or '' }
