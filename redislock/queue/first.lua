-- first: ARGV mode id units capacity ttl session people value name keep
--
-- The start of "enter", and all of it for a name that is free: nobody pays for the
-- functions of queue.lua who does not meet a queue. The answers are those of enter.lua.
local id, ttl = ARGV[2], tonumber(ARGV[5])
local t = redis.call('TIME')
local K, now = KEYS[1], t[1] * 1000000 + t[2]
local m = redis.call('HMGET', K, 'hasp1', 'one')
local left = redis.call('PTTL', K) -- -2: there is no such key

-- putAlone writes an entry that nobody else stands beside: see queue.lua.
local function putAlone(seq)
  redis.call('HSET', K, 'hasp1', string.format('%.0f', seq), 'one',
    id .. ' ' .. string.format('%.0f', now + ttl) .. ' ' .. ARGV[3] .. ' ' .. ARGV[4] .. ' ' .. ARGV[6] .. ' ' .. ARGV[7])
  return seq
end

-- keepName puts off the day on which an idle name is forgotten, after something has been
-- written. It asks for a sixteenth more than keep, so that a busy name does not pay for it
-- each time. The server is asked what is left, and no conclusion drawn from the last Seq:
-- that may be of a client which keeps names for less, and whose TTL is shorter.
local function keepName()
  local keep = tonumber(ARGV[10])
  if left < keep then redis.call('PEXPIRE', K, string.format('%.0f', keep * 17 / 16)) end
end

-- following is the token after last: nil where there is none. Beyond 2^53 a number and the
-- next one are the same in Lua, so that every grant would have the token of the one before.
local function following(last)
  local s = math.max(last + 1, now)
  return s < 9007199254740992 and s or nil
end

local function exhausted()
  return redis.error_reply('EXHAUSTED the tokens of this name have come to their end at 2^53: remove the key ' .. K)
end

-- nil with a '+' behind the Seq, or where something that is not ours stands.
local last = tonumber(m[1] or left == -2 and 0)
local plain = ARGV[8] == '' and ARGV[9] == ''
if last and not m[2] and plain and ARGV[1] ~= 'ask' then
  local seq = following(last)
  if not seq then return exhausted() end
  putAlone(seq)
  keepName()
  return seq
end
