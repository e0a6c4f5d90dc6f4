-- first: ARGV mode id units capacity ttl session people value name retention
--
-- The start of "enter", and all of it for a name that is free: nobody pays for the
-- functions of queue.lua who does not meet a queue. The answers are those of enter.lua.
local id, ttl = ARGV[2], tonumber(ARGV[5])
local t = redis.call('TIME')
local K, now = KEYS[1], t[1] * 1000000 + t[2]
local m = redis.call('HMGET', K, 'hasp1', 'one')

-- putAlone writes an entry that nobody else stands beside: see queue.lua.
local function putAlone(seq)
  redis.call('HSET', K, 'hasp1', string.format('%.0f', seq), 'one',
    id .. ' ' .. string.format('%.0f', now + ttl) .. ' ' .. ARGV[3] .. ' ' .. ARGV[4] .. ' ' .. ARGV[6] .. ' ' .. ARGV[7])
  return seq
end

-- keepName puts off the day on which an idle name is forgotten. A Seq is a time, so the
-- last one tells whether somebody has done so in the present sixteenth of the retention.
local function keepName(last)
  local period = ARGV[10] * 1000 / 16
  if math.floor(last / period) ~= math.floor(now / period) then redis.call('PEXPIRE', K, ARGV[10]) end
end

-- nil with a '+' behind the Seq, or where something that is not ours stands.
local last = tonumber(m[1] or redis.call('EXISTS', K) == 0 and 0)
local plain = ARGV[8] == '' and ARGV[9] == ''
if last and not m[2] and plain and ARGV[1] ~= 'ask' then
  local seq = putAlone(math.max(last + 1, now))
  keepName(last)
  return seq
end
