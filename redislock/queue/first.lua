-- first: ARGV mode id units capacity ttl session people value name retention
--
-- The start of "enter", and all of it for a name that is known and free: nobody pays for
-- the functions of queue.lua who does not meet a queue. The answers are those of enter.lua.
local id, ttl = ARGV[2], tonumber(ARGV[5])
local t = redis.call('TIME')
local K, now = KEYS[1], t[1] * 1000000 + t[2]
local m = redis.call('HMGET', K, 'hasp1', 'queue', 'watch', 'e:' .. id)

-- Idle names go some time after their last use. A Seq is a time, so the last one tells
-- whether somebody has put that off in the present sixteenth of the retention.
local period = ARGV[10] * 1000 / 16
local forgets = math.floor((m[1] or 0) / period) ~= math.floor(now / period)

if m[1] and not (m[2] or m[3] or m[4] or forgets) and ARGV[1] ~= 'ask' and ARGV[9] == '' then
  local seq, expiry = math.max(m[1] + 1, now), string.format('%.0f', now + ttl)
  local s = string.format('%.0f', seq)
  redis.call('HSET', K, 'hasp1', s, 'queue', ARGV[4] .. ' ' .. ARGV[3] .. ' 1 ' .. expiry .. ' 1 0', 'h:1', id,
    'e:' .. id, s .. ' ' .. ARGV[3] .. ' ' .. expiry .. ' h1 ' .. ARGV[6] .. ' ' .. ARGV[7])
  if ARGV[8] ~= '' then redis.call('HSET', K, 'b:' .. id, ARGV[8]) end
  return seq
end
