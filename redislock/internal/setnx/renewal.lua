-- renewal: the start of the scripts that extend many locks. KEYS of locks, ARGV ttl, then one for
-- each lock. noteTTL tells the mark of the quarantine how long these leases are.
local function noteTTL()
  local t = redis.call('TIME')
  closedUntil(t[1] * 1000000 + t[2], ARGV[1] * 1000)
end
