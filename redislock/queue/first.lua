-- first: KEYS name [mark], ARGV mode id units capacity ttl session owner value name keep
--
-- The start of "enter", and all of it for a free name: a request that meets no queue does not
-- pay for the functions of queue.lua. The answers are those of enter.lua.
local id, ttl = ARGV[2], tonumber(ARGV[5])
local t = redis.call('TIME')
local K, now = KEYS[1], t[1] * 1000000 + t[2]
local m = redis.call('HMGET', K, 'hasp1', 'one')
local left = redis.call('PTTL', K) -- -2: there is no such key
local closed = closedUntil(KEYS[2], now, ARGV[5])

-- putAlone writes the only entry of a name: see queue.lua.
local function putAlone(seq)
  redis.call('HSET', K, 'hasp1', string.format('%.0f', seq), 'one',
    id .. ' ' .. string.format('%.0f', now + ttl) .. ' ' .. ARGV[3] .. ' ' .. ARGV[4] .. ' ' .. ARGV[6] .. ' ' .. ARGV[7])
  return seq
end

-- keepName extends the key's expiry after a write. It sets a sixteenth more than keep, so that
-- a busy name does not pay for it each time. It asks the server how much is left and concludes
-- nothing from the last Seq: that may belong to a client with a shorter retention and TTL.
local function keepName()
  local keep = tonumber(ARGV[10])
  if left < keep then redis.call('PEXPIRE', K, string.format('%.0f', keep * 17 / 16)) end
end

-- following is the token after last: nil if there is none. From 2^53 on a number and the next
-- one are the same in Lua, and every grant would repeat the token of the one before.
local function following(last)
  local s = math.max(last + 1, now)
  return s < 9007199254740992 and s or nil
end

local function exhausted()
  return redis.error_reply('EXHAUSTED the tokens of this name have come to their end at 2^53: remove the key ' .. K)
end

-- nil if the Seq ends with '+', or if the key holds something that hasp did not write.
local last = tonumber(m[1] or left == -2 and 0)
local plain = ARGV[8] == '' and ARGV[9] == ''
if last and not m[2] and plain and ARGV[1] ~= 'ask' and closed <= now then
  local seq = following(last)
  if not seq then return exhausted() end
  putAlone(seq)
  keepName()
  return seq
end
