-- renewal: the start of the scripts that extend many locks. KEYS of locks [mark], ARGV ttl, then one
-- for each lock. noteTTL tells the mark of the quarantine how long these leases are.
local function noteTTL()
  local mark = KEYS[#ARGV]
  if not mark then return end
  local t = redis.call('TIME')
  closedUntil(mark, t[1] * 1000000 + t[2], ARGV[1] .. '000')
end
