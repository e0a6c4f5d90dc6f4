local RUN = nil
-- mark: knows whether this server may have forgotten grants.
--
-- The key 'mark' has "RUN LONGEST UNTIL": the run id of the server process that wrote it, the longest
-- TTL that was ever used here, and the server's time before which nothing is granted. A process that
-- was started again, a promoted replica and an emptied server have another run id than their mark,
-- or no mark: they may have forgotten grants. The first script that finds this closes the server
-- until each lease that may be forgotten is over, in the same script and before it grants anything.
-- So there is no moment in which one client knows of the loss and another is granted.
--
-- RUN is this process's run id, in a text that only this process has: see redisconn/process.go.
--
-- The key hasp:new with this process's run id is an operator's word that it has nothing to remember;
-- in a cluster hasp:new:{TAG}, for the slot of the tag.
local function marked(name)
  local text = redis.pcall('INFO', name)
  return type(text) == 'string' and text or '' -- a user without the right to INFO has no run id
end

-- started is the latest moment at which a process without a mark can have forgotten something: its
-- start if it has never been a replica and never removed keys in bulk, else now. INFO counts whole
-- seconds, and the commands since CONFIG RESETSTAT, which counts itself. DEL by hand is not seen: it
-- forgets what the operator wanted to be forgotten.
local function started(now)
  if not string.find(marked('replication'), 'second_repl_offset:-1', 1, true) then return now end
  local commands = marked('commandstats')
  for _, name in ipairs({ 'flush', 'swapdb', 'debug', 'config|resetstat', 'config:' }) do
    if string.find(commands, 'cmdstat_' .. name, 1, true) then return now end
  end
  if string.match(marked('stats'), 'evicted_keys:(%d+)') ~= '0' then return now end
  local uptime = tonumber(string.match(marked('server'), 'uptime_in_seconds:(%d+)') or 0)
  return math.min(now, now - (uptime - 1) * 1000000)
end

-- closedUntil is when grants begin: a moment in the past if the server is not closed. key is the
-- mark's; without one the quarantine is off. ttl is the caller's in microseconds, which no lease may
-- exceed that the mark knows of; 0 if the script has none.
local function closedUntil(key, now, ttl)
  if not key then return 0 end
  local run = RUN or string.match(marked('server'), 'run_id:(%x+)') or '0'
  local text = redis.call('GET', key)
  local there, longest, till = string.match(text or '', '^(%x+) (%d+) (%d+)$')
  longest, till = tonumber(longest or 0), tonumber(till or 0)
  if there == run and longest >= ttl then return till end
  if ttl == 0 then return now + 1000000 end -- it does not know what may be forgotten: the next renewal or request does
  longest = math.max(longest, ttl)
  local known = longest
  if there ~= run and not (not text and redis.pcall('GET', 'hasp:new' .. (string.match(key, ':{.*}$') or '')) == run) then
    till = math.max(till, (text and now or started(now)) + longest)
    -- From here on the longest is found again: each holder renews, and says its TTL, before its lease
    -- is over. So a TTL that was once used by mistake does not close the server for ever.
    known = ttl
  end
  -- A server with full memory refuses the mark, and must let holders leave all the same. The next
  -- script tries again; until one succeeds this one grants nothing.
  local set = redis.pcall('SET', key, run .. ' ' .. string.format('%.0f', known) .. ' ' .. string.format('%.0f', till))
  return set.err and math.max(till, now + longest) or till
end
