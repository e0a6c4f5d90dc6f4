-- mark: knows whether this server may have forgotten grants.
--
-- Every script that grants begins with this file. It closes the server in the same script that
-- finds that grants may be forgotten, and before it grants anything: so there is no moment in which
-- one client knows of the loss and another is granted. The server grants nothing until each lease
-- that may be forgotten is over.
--
-- The mark is a hash, at the same key in each format:
--
--   reign    the replication id of the server when it wrote the mark, and
--   run      its run id. Redis draws a replication id when a process starts and when a replica is
--            promoted: each reign of a master has its own, also if it was a replica in between and
--            has the data of another. One is also drawn when the first replica comes, or the last
--            has been away for an hour: then the run id is the same, and nothing was promoted.
--   since    from when on the data here lack nothing, and
--   till     when the server began to grant, or begins: each lease from before is over. 0: see below.
--   longest  the longest TTL that was used in the present period, which
--   ends     then. A period is at least as long as BOUND was when it began.
--   told     "FORMAT.ID BOUND START ", which clients are told. ID names the data since "since", and is
--            drawn with it: so each ID is one reign's. BOUND is the longest TTL of the present period and of
--            the one before. A script that grants or renews a lease notes its TTL first, so the lease
--            is over when the next period ends: none that lives is longer than BOUND, and a TTL that
--            was once used by mistake is forgotten after two of its lengths. START is a moment at
--            which this was so. It is moved when "longest" grows, and by the first request after
--   fresh    a quarter of BOUND later: so each client that renews is told a START that is as new.
--
-- Times are microseconds of this server's clock. A loss is found in three ways:
--
--   1. There is no mark. The data lack nothing since the process started, if it was never promoted,
--      and never had keys removed in bulk or brought from elsewhere; else since now. INFO forgets a
--      promotion that no replica has followed for an hour (repl-backlog-ttl), so it says nothing of
--      what was before that hour, nor about leases that are longer.
--   2. The mark is of another reign: since now. (Not since the start: a replica is promoted at any
--      time, and INFO may forget that, or tell it of a master that was started again.)
--   3. A client says in each request what it was told last. It has been served from other data after
--      "since" if it knows another ID and a START after "since", or our ID and a later START than
--      ours (this is an older copy): since now. A START from before "since" is no news: the server
--      has been closed since then for all that the client can know. So one loss closes once, and no
--      list of former IDs is needed, which FLUSHALL would remove. (By another server's clock, or from
--      before this one was set back, a START may be in the future: then it is "since", or each client
--      that has such a START would close the server anew.) A START is a quarter of BOUND old at most,
--      and this server was closed for a BOUND after "since": a client that is granted a lock here,
--      although others hold it elsewhere, was told nothing there for most of a TTL.
--
-- In a cluster each slot has a mark, so a client also says what it knows of the server: FACTS, a hash
-- of its reign and of what has removed keys or brought some or a slot, and FROM, when it was first told
-- so. If they are as then, no slot lacks anything since FROM: one RESTORE or CONFIG RESETSTAT does not
-- close each slot at its first use. Another server has other FACTS; so the client may be wrong about whose
-- the slot is.
--
-- With wait=N a master that was replaced goes on granting to the clients on its side, for as long as
-- N replicas confirm. So the time of the new master begins when its own replicas have confirmed a
-- mark of its reign: they have left the old one, and if N is half of all replicas or more, too few
-- are left there. Until a client says that it has had this confirmation "till" is 0, and no FACTS
-- are told.
--
-- The key hasp:new with this process's run id is an operator's word that it has nothing to
-- remember; in a cluster hasp:new:{TAG}, for the slot of the tag.

-- The last of ARGV is how the client asks, and what it knows: "-", with wait=N "w", or "c" if N
-- replicas have confirmed what it was told; then "ID BOUND START " or nothing; then ";FACTS FROM" or
-- nothing. The last of KEYS is then the mark. "off": there is no quarantine; "blind": the mark
-- cannot be read for the moment, and nothing is granted; nor while a key of another type is there.
local known = table.remove(ARGV)
local mark = known ~= 'off' and known ~= 'blind' and table.remove(KEYS)
local tell, unconfirmed, facts, refused -- news for the client: see answer.lua

-- info is empty for a user without the right to it.
local function info(section)
  local text = redis.pcall('INFO', section)
  return type(text) == 'string' and text or ''
end

local function number(x) return string.format('%.0f', x) end

-- closedUntil is when grants begin, or have begun. ttl is the caller's, in microseconds;
-- with nil it writes nothing, and tells no news: the next renewal or request does.
--
-- A script pays for it each time. So the usual case comes first, without a pattern: that costs the
-- server more than a field. There the format is ours: a client knows nothing that was told in another.
-- A mark of another format ends the script before it writes anything: its clients would not know what
-- ours have noted. "format" is of guard.go.
local function closedUntil(now, ttl)
  if not mark then return known == 'blind' and now + 1000000 or 0 end
  local m, replication = redis.pcall('HMGET', mark, 'told', 'reign', 'till', 'longest', 'fresh'), info('replication')
  local told, reign, till, longest, fresh = m[1] or '', m[2], tonumber(m[3] or 0), tonumber(m[4] or 0), tonumber(m[5] or 0)
  if now < fresh and till > 0 and till <= now and (not ttl or ttl <= longest)
    and string.find(known, told, 2, true) == 2 and string.find(replication, 'master_replid:' .. reign, 1, true) then
    return till
  end
  if m[1] and string.sub(told, 1, #format) ~= format then error('FORMAT ' .. format .. ' ' .. mark .. ' ' .. told, 0) end

  -- past has the statistics of all that has removed keys or brought some or a slot since the process started
  -- or CONFIG RESETSTAT, which counts itself (Redis before 7: any CONFIG); nil if they are not told.
  -- DEL by hand is not seen: it forgets what the operator wanted to be forgotten.
  local function past()
    local stats, found = info('commandstats'), string.match(info('stats'), 'evicted_keys:(%d+)')
    if not found or not string.find(stats, 'cmdstat_', 1, true) then return nil end
    for _, name in ipairs({ 'flush', 'swapdb', 'restore', 'debug', 'config|resetstat', 'config:', 'cluster|setslot',
      'cluster|syncslots', 'cluster|migrat', 'slaveof', 'replicaof' }) do
      for line in string.gmatch(stats, 'cmdstat_' .. name .. '[^\r]*') do found = found .. line end
    end
    return found
  end

  local id, bound, start = string.match(told, '^(%S+) (%d+) (%d+) ')
  local sawID, sawBound, sawStart = string.match(known, '^.(%S+) (%d+) (%d+) ')
  local sawFacts, from = string.match(known, ';(%x+) (%d+)$')
  local run, since, ends = unpack(redis.pcall('HMGET', mark, 'run', 'since', 'ends'))
  bound, start, sawStart, ends = tonumber(bound or 0), tonumber(start or 0), tonumber(sawStart or 0), tonumber(ends or 0)
  -- Who may not ask which reign it is takes the mark's word for it: else clients with the right to
  -- INFO and clients without would close the server for each other by turns.
  local this, slot = string.match(replication, 'master_replid:(%x+)') or reign or '0', string.match(mark, ':{.*}$')
  local same, complete, how = this == reign, tonumber(since or 0), string.sub(known, 1, 1)
  local before = replication ~= '' and (not same or slot and (not sawID or how == 'c')) and past()
  local hash = slot and before and string.sub(redis.sha1hex(this .. before), 1, 16)
  if not same then
    local server, ran, promoted = info('server'), run, not string.find(replication, 'second_repl_offset:-1', 1, true)
    run, complete = string.match(server, 'run_id:(%x+)') or '0', now
    if before and run == ran and run ~= '0' and bound <= 3.6e9 and not promoted and not string.find(before, 'of:', 1, true) then -- slaveof, replicaof
      same, complete = true, tonumber(since)
    elseif hash and hash == sawFacts then
      complete = math.min(now, tonumber(from))
    elseif m[1] == false and not promoted and before == '0' then -- INFO counts whole seconds
      complete = math.min(now, now - (math.min(3600, tonumber(string.match(server, 'uptime_in_seconds:(%d+)') or 0)) - 1) * 1000000)
    end
  end
  if sawStart > (same and sawID == id and start or complete) then same, complete = false, now end
  if m[1] == false and redis.pcall('GET', 'hasp:new' .. (slot or '')) == run then complete = 0 end

  local span = math.max(bound, tonumber(sawBound or 0), ttl or 1000000)
  local opened = same and till > 0 and ttl and ttl <= longest and till
  if not same then
    id, till = format .. string.sub(run, 1, 8) .. '.' .. number(now), complete == now and how ~= '-' and 0 or complete + span
    bound, longest, start, ends, complete = span, span, now, now + span, math.max(complete, sawStart)
  end
  if same and till == 0 and (how == '-' or how == 'c' and sawID == id) then till = now + span end
  till = math.min(till, now + span) -- a clock that was set back must not prolong what is left
  if not ttl then return till == 0 and now + span or till end

  if till > 0 and now >= ends then ends, bound, longest = now + math.max(longest, ttl), longest, 0 end
  if ttl > longest or now >= fresh then longest, start = math.max(longest, ttl), math.max(start, now) end
  bound = math.max(bound, longest)
  told = id .. ' ' .. number(bound) .. ' ' .. number(start) .. ' '
  -- A server with full memory refuses the mark, and must let holders leave all the same. The next
  -- script tries again; until one succeeds this one grants nothing.
  local set = redis.pcall('HSET', mark, 'told', told, 'reign', this, 'till', number(till), 'longest', number(longest),
    'fresh', number(start + bound / 4), 'ends', number(ends), 'run', run, 'since', number(complete))
  if type(set) == 'table' then refused = not m.err and set return opened or now + span end
  if till == 0 or hash or string.find(known, told, 2, true) ~= 2 then
    tell, unconfirmed, facts = told, till == 0, till > 0 and hash and hash .. ' ' .. number(now)
  end
  return till == 0 and now + span or till
end

-- run is the script itself. Its parts follow here; answer.lua begins with the "end" of run.
local function run()
