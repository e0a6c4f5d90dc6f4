-- KEYS: the lock, its counter, its waiters (setnx) or the description of its holder (redisson).
local lock, counter, waiters = KEYS[1], KEYS[2], KEYS[3]

local asked -- the server's time, once it was asked for
local function micros()
  if not asked then
    local t = redis.call('TIME')
    asked = t[1] * 1000000 + t[2]
  end
  return asked
end

-- closedFor is for how many milliseconds the server still grants nothing (see mark.lua, which the
-- scripts that grant begin with); ttl is the caller's.
local function closedFor(ttl)
  local now = micros()
  return math.max(0, math.ceil((closedUntil(now, ttl * 1000) - now) / 1000))
end

-- longer is ms, or what the key has left if that is more: clients with different settings share
-- these keys, and none may shorten the expiry of a key that another needs.
local function longer(key, ms)
  return string.format('%.0f', math.max(redis.call('PTTL', key), ms))
end

-- token returns the token of a lock that is about to be taken or, if again, is held since an
-- earlier request whose answer was lost. Only grants change the counter, so its value is the
-- holder's token. keep 0: no counter was asked for. nil: there are no more tokens. From 2^53 on
-- a number and the next one are the same in Lua, and every grant would repeat the token of the
-- one before.
local function token(again, keep)
  if keep == '0' then return 0 end
  local last = tonumber(redis.call('GET', counter) or 0)
  if not again or last == 0 then
    last = math.max(last + 1, micros())
    if last >= 9007199254740992 then return nil end
    redis.call('SET', counter, string.format('%.0f', last), 'PX', longer(counter, tonumber(keep)))
  end
  return last
end

local function exhausted()
  return redis.error_reply('EXHAUSTED the tokens of this name have come to their end at 2^53: remove the key ' .. counter)
end

-- mine reports whether the lock's value belongs to me: it begins with me. The rest describes
-- the owner, or may change while the lock is held.
local function mine(value, me)
  return value and me ~= '' and string.sub(value, 1, #me) == me
end
