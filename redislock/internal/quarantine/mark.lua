local RUN = nil
-- mark: knows whether this server may have forgotten grants.
--
-- The key 'mark' has "RUN UNTIL LONGEST": the run id of the server process that wrote it, the server's
-- time before which nothing is granted (0: it is over), and the longest TTL that is used here. A process that
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

-- closedUntil is when grants begin: a moment in the past if the server is not closed. key is the
-- mark's; without one the quarantine is off. ttl is the caller's, a text in microseconds, which no
-- lease may exceed that the mark knows of; nil if the script has none.
--
-- A script pays for it each time, so the usual case is one comparison: the server is open, and the
-- longest TTL is the caller's. What is behind it finds out whether the server may have forgotten
-- grants, and writes the mark if so. Its functions are inside, for each function that a script defines
-- costs the server as much as a short command.
local function closedUntil(key, now, ttl)
  if not key then return 0 end
  local text = redis.call('GET', key)
  if RUN and text and (text == RUN .. ' 0 ' .. (ttl or '') or not ttl and string.find(text, RUN .. ' 0 ', 1, true)) then return 0 end
  ttl = ttl and tonumber(ttl)

  -- started is the latest moment at which a process without a mark can have forgotten something: its
  -- start if it has never been a replica and never removed keys in bulk, else now. INFO counts whole
  -- seconds, and the commands since CONFIG RESETSTAT, which counts itself. DEL by hand is not seen: it
  -- forgets what the operator wanted to be forgotten.
  local function started()
    if not string.find(marked('replication'), 'second_repl_offset:-1', 1, true) then return now end
    local commands = marked('commandstats')
    for _, name in ipairs({ 'flush', 'swapdb', 'debug', 'config|resetstat', 'config:' }) do
      if string.find(commands, 'cmdstat_' .. name, 1, true) then return now end
    end
    if string.match(marked('stats'), 'evicted_keys:(%d+)') ~= '0' then return now end
    local uptime = tonumber(string.match(marked('server'), 'uptime_in_seconds:(%d+)') or 0)
    return math.min(now, now - (uptime - 1) * 1000000)
  end

  local run = RUN or string.match(marked('server'), 'run_id:(%x+)') or '0'
  local there, till, longest = string.match(text or '', '^(%x+) (%d+) (%d+)$')
  till, longest = tonumber(till or 0), tonumber(longest or 0)
  -- Who may not ask for the run id takes the mark's word for it. With another text for the same process,
  -- clients with the right to INFO and clients without would close the server for each other by turns.
  if run == '0' and there then run = there end
  local known = there == run
  local covered = known and (not ttl or longest >= ttl)
  if covered and (till == 0 or till > now) then return till end
  if not ttl then return known and till or now + 1000000 end -- the next renewal or request finds out
  longest = math.max(longest, ttl)
  local kept = longest
  if not known and not (not text and redis.pcall('GET', 'hasp:new' .. (string.match(key, ':{.*}$') or '')) == run) then
    till = math.max(till, (text and now or started()) + longest)
    -- From here on the longest is found again: each holder renews, and says its TTL, before its lease
    -- is over. So a TTL that was once used by mistake does not close the server for ever.
    kept = ttl
  end
  if till <= now then till = 0 end
  -- A server with full memory refuses the mark, and must let holders leave all the same. The next
  -- script tries again; until one succeeds this one grants nothing.
  local set = redis.pcall('SET', key, run .. ' ' .. string.format('%.0f', till) .. ' ' .. string.format('%.0f', kept))
  return set.err and not covered and math.max(till, now + longest) or till
end
