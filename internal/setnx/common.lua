-- KEYS: the lock, its counter, its waiters (setnx) or who holds it (redisson).
local lock, counter, waiters = KEYS[1], KEYS[2], KEYS[3]

local function micros()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

-- token answers for a lock that was just taken or, if again, is held since an earlier
-- request whose answer was lost. Only grants move the counter, so the holder's own is the
-- last. retention 0: no counter was asked for.
local function token(again, retention)
  if retention == '0' then return { 1, 0 } end
  local last = tonumber(redis.call('GET', counter) or 0)
  if not again or last == 0 then
    last = math.max(last + 1, micros())
    redis.call('SET', counter, string.format('%.0f', last), 'PX', retention)
  end
  return { 1, last }
end

-- mine tells whether the lock's value is me's: it begins with me, and what follows is for
-- people, or may change while the lock is held.
local function mine(value, me)
  return value and me ~= '' and string.sub(value, 1, #me) == me
end
