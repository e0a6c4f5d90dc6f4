-- mark: knows whether this server may have forgotten grants.
--
-- Every script that grants begins with this file. It closes the server in the same script that
-- finds that grants may be forgotten, and before it grants anything: so there is no moment in which
-- one client knows of the loss and another is granted. The server grants nothing until each lease
-- that may be forgotten is over.
--
-- The key of the mark has
--
--   TILL LONGEST REIGN BEFORE SWAPS FORMER VERSION ID
--
-- where
--
--   REIGN   the replication id and the run id of the server when it wrote the mark. Redis draws a
--           replication id when a process starts and when a replica is promoted. So it differs
--           after a restart, and in each reign of a master, also if it was a replica in between and
--           has the data of another. One is also drawn when the first replica comes or the last has
--           been away for an hour: then the run id is the same, and the process was not promoted.
--   TILL    the server's time from which it grants. 0: see "confirmed" below.
--   VERSION grows with each change; a moment of the server's time.
--   LONGEST the longest TTL that was used since VERSION, and
--   BEFORE  the longest TTL in the period before. A period ends when it is older than both. A lease
--           is granted or renewed by a script that has noted its TTL in the present period, and is
--           over before the next period ends: the longer of the two bounds all leases that may
--           live. So a TTL that was once used by mistake is forgotten when it has not been used for
--           two of its lengths.
--   SWAPS   how often SWAPDB had been used in the process.
--   ID      names the data that the mark is part of, across restarts and failovers; drawn anew when
--           there is no mark, and when a client has known another one.
--   FORMER  the last three of such other IDs, separated by commas, or "-".
--
-- A client says with each request what it was last told: the mark. It was told by another server,
-- or this server was given other data, if there is no such ID, or the VERSION is lower. Only a
-- client can know that its address leads to another server now. FORMER is for the other clients
-- that were told the same: the server closes for the first one alone. A client that was told
-- nothing yet has the SWAPS compared. (Not the uses of RESTORE: programs that copy their data to
-- this server all the time would keep it closed.)
--
-- The REIGN costs the server as much as a third of a short script. So a client that has had it
-- compared a moment ago (see Guard) says so, and then an equal mark is enough.
--
-- Confirmed: with wait=N a master that was replaced goes on granting to the clients on its side,
-- for as long as N replicas confirm. So the time of the new master begins when its replicas have
-- confirmed a mark of the new reign: these have left the old one, and if N is half of all replicas
-- or more, too few are left there. TILL is 0 until a client says that it has had this confirmation.
--
-- The key hasp:new with this process's run id is an operator's word that it has nothing to
-- remember; in a cluster hasp:new:{TAG}, for the slot of the tag.

-- The last of ARGV is how the client asks, and what it was told: "-", with wait=N "w", or "c" if N
-- replicas have confirmed what it was told; "+" and "W" if it has had the reign compared. The last
-- of KEYS is then the mark. "off": there is no quarantine; "blind": the mark cannot be read for the
-- moment, and nothing is granted.
local known = table.remove(ARGV)
local mark = known ~= 'off' and known ~= 'blind' and table.remove(KEYS)
local tell, unconfirmed -- the mark if the reign was compared, "" if the client knows it; whether TILL is 0

-- closedUntil is when grants begin, or have begun. ttl is the caller's, a text in microseconds;
-- with nil it writes nothing, and tells no news: the next renewal or request does.
--
-- A script pays for it each time, so the usual case comes first, and the functions that the others
-- need are inside: each function that a script defines costs the server as much as a short command.
local function closedUntil(now, ttl)
  if not mark then return known == 'blind' and now + 1000000 or 0 end
  local text = redis.call('GET', mark)
  local how, saw = string.sub(known, 1, 1), string.sub(known, 2)
  ttl = ttl and tonumber(ttl)
  if text == saw and (how == '+' or how == 'W') then
    local till, longest = string.match(text, '^(%d+) (%d+) ')
    till = tonumber(till)
    if till > 0 and till <= now and (not ttl or ttl <= tonumber(longest)) then return till end
  end

  local function info(section)
    local text = redis.pcall('INFO', section)
    return type(text) == 'string' and text or '' -- a user without the right to INFO has none
  end

  local function parse(mark)
    local till, longest, of, before, swaps, former, version, id =
      string.match(mark or '', '^(%d+) (%d+) (%S+) (%d+) (%d+) (%S+) (%d+) (%S+)$')
    return tonumber(till or 0), tonumber(longest or 0), tonumber(before or 0), tonumber(version or 0), id, of, swaps, former
  end
  local till, longest, before, version, id, of, swaps, former = parse(text)
  local waits, confirmed = how ~= '-' and how ~= '+', how == 'c'
  -- Who may not ask which reign it is takes the mark's word for it. With another text for the same
  -- reign, clients with the right to INFO and clients without would close the server for each other
  -- by turns.
  local reign = string.match(info('replication'), 'master_replid:(%x+)') or string.match(of or '', '^%x+') or '0'
  local last = version + math.max(longest, before) -- of the period
  local same = of and string.find(of, reign .. '/', 1, true) == 1
  if same and text == saw and till > 0 and till <= now and (not ttl or ttl <= longest and now < last) then
    tell = ''
    return till
  end
  local _, sawLongest, _, sawVersion, sawID = parse(saw)

  -- swapped is how often SWAPDB was used; nil if that cannot be known.
  local function swapped()
    local stats = info('commandstats')
    return stats ~= '' and (string.match(stats, 'cmdstat_swapdb:calls=(%d+)') or '0') or nil
  end

  local run = string.match(info('server'), 'run_id:(%x+)') or '0'

  -- started is the latest moment at which a process can have forgotten something that no client
  -- tells of: its start if it has never been promoted and never had keys removed in bulk or brought
  -- from elsewhere, else now. INFO counts whole seconds, and the commands since CONFIG RESETSTAT,
  -- which counts itself. DEL by hand is not seen: it forgets what the operator wanted to be
  -- forgotten.
  local function started()
    local stats = info('commandstats')
    local promoted = not string.find(info('replication'), 'second_repl_offset:-1', 1, true)
    if not promoted and of and run ~= '0' and string.sub(of, -#run) == run then return 0 end
    if promoted or not string.find(stats, 'cmdstat_', 1, true)
      or string.match(info('stats'), 'evicted_keys:(%d+)') ~= '0' then
      return now
    end
    for _, name in ipairs({ 'flush', 'swapdb', 'restore', 'debug', 'config|resetstat', 'config:', 'cluster|syncslots', 'cluster|migrat' }) do
      if string.find(stats, 'cmdstat_' .. name, 1, true) then return now end
    end
    local uptime = tonumber(string.match(info('server'), 'uptime_in_seconds:(%d+)') or 0)
    return math.min(now, now - (uptime - 1) * 1000000)
  end

  -- saidNew reports the operator's word. It counts while there is no mark.
  local function saidNew()
    local word = redis.pcall('GET', 'hasp:new' .. (string.match(mark, ':{.*}$') or ''))
    return word == run
  end

  local replaced = text and not of
    or sawID and (not of or sawID == id and sawVersion > version
      or sawID ~= id and not string.find(',' .. former .. ',', ',' .. sawID .. ',', 1, true))
    or not sawID and of and (swapped() or swaps) ~= swaps
  local doubt = replaced or not same
  local span = math.max(longest, before, sawLongest, ttl or 1000000)
  local opened, covered = till, not doubt and till > 0 and ttl and ttl <= longest
  if not doubt then
    -- A clock that was set back must not prolong what is left.
    if till > now + span then till = now + span end
    if till == 0 and (not waits or confirmed and saw == text) then till = now + span end
    if ttl and till > 0 and now >= last then before, longest = longest, 0 end
    longest = math.max(longest, ttl or 0)
  elseif not text and saidNew() then
    till, before, longest = now, 0, span
  else
    local since = replaced and now or started()
    local unknown = waits and (since == now or of and till == 0)
    -- A quarantine that is not over goes on: the id of a reign changes also without a restart.
    till = unknown and 0 or math.max(since + span, math.min(till, now + span))
    before, longest = span, span
  end
  if not ttl then
    if not doubt then tell = text end
    return till == 0 and now + span or till
  end

  if replaced or not of then
    local ids = {}
    for other in string.gmatch((sawID or '') .. ',' .. (id or '') .. ',' .. (former or ''), '[^,-]+') do
      if #ids < 3 then ids[#ids + 1] = other end
    end
    former = #ids > 0 and table.concat(ids, ',') or '-'
    id = string.sub(run, 1, 8) .. '.' .. string.format('%.0f', now)
  end
  if doubt then swaps, of = swapped() or swaps or '0', reign .. '/' .. run end
  local function written()
    return string.format('%.0f %.0f %s %.0f %s %s %.0f %s', till, longest, of, before, swaps, former, version, id)
  end
  local new = written()
  if new ~= text then
    version = math.max(version + 1, sawVersion + 1, now)
    new = written()
  end
  -- With TILL 0 it is written each time: WAIT waits for the writes of its own connection.
  if new ~= text or till == 0 then
    -- A server with full memory refuses the mark, and must let holders leave all the same. The next
    -- script tries again; until one succeeds this one grants nothing.
    local set = redis.pcall('SET', mark, new)
    if set.err then return covered and opened or now + span end
  end
  tell, unconfirmed = new == saw and '' or new, till == 0 and 1 or 0
  return till == 0 and now + span or till
end

-- run is the script itself.
local function run()
