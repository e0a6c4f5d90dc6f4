-- hasp, tables of version 2. Version 1 was changed under its number while hasp was being developed:
-- nobody knows what such tables are, and they are refused.
--
-- "hasp_" stands for the schema and the prefix, "hasp_ after a double quote for the prefix alone.
--
-- What the name of an operator or a function means depends on the caller's search_path, and a
-- better match of the arguments' types wins over pg_catalog's: a role that may create something in
-- a schema of that path could have every client run its code, with the client's rights. So each
-- function here brings its own path; one that is a single expression is bound when it is created
-- (RETURN), which is as safe and can be inlined. Only pg_catalog and, after it, the session's
-- temporary objects are looked in; our objects are named with their schema.
--
-- Other roles may create objects in that schema, too, and a function of the same name with other
-- arguments could be preferred for a number that is a plain 0, or for an argument of a client's.
-- So every argument has exactly the type of its parameter: then there is no better match.
--
-- used, in several tables, is the hour of a name's last use, by which the idle names are found
-- with an index. An index on seq would be written at every acquisition; the hour changes once in
-- an hour.

-- names has a row for each name that was used lately. The lock of that row orders everything that
-- happens to the name, and its seq is the last number given out, which is the fencing token. It is
-- never a SEQUENCE: that gives numbers in the order of the requests, and transactions commit in
-- another.
--
-- A name without waiters has its one entry here and not in the table of entries: h_id and the
-- rest, the row holder. It is made and removed by one update that writes no index. Its owner's next
-- renewal moves it to the entries, and so does a client that finds the name taken (queue_holder),
-- so that everything else has only entries to look at. The time until then is h_until, a TTL after
-- it was made, at which it is dead, independently of its session. So a row holder that its owner
-- does not know of (a request that came too late has made it; a crash of the server has forgotten
-- its release) ends by itself, and renewals need not look for it in all names.
--
-- queued says that there may be entries: then there is no row holder, and none is made.
CREATE TABLE IF NOT EXISTS hasp_names (
  name       text COLLATE "C" PRIMARY KEY, -- compared byte by byte, for any locale of the database
  seq        bigint NOT NULL,
  watched    bigint NOT NULL DEFAULT 0, -- until when changes are notified
  used       bigint NOT NULL DEFAULT floor(extract(epoch FROM now()) / 3600)::bigint,
  queued     boolean NOT NULL DEFAULT false,
  h_id       text COLLATE "C" NOT NULL DEFAULT '', -- '' if there is no row holder
  h_seq      bigint NOT NULL DEFAULT 0,
  h_until    bigint NOT NULL DEFAULT 0,
  h_session  text COLLATE "C" NOT NULL DEFAULT '',
  h_units    bigint NOT NULL DEFAULT 0,
  h_capacity bigint NOT NULL DEFAULT 0,
  h_since    bigint NOT NULL DEFAULT 0,
  h_owner    text NOT NULL DEFAULT '',
  h_value    bytea NOT NULL DEFAULT ''
) WITH (fillfactor = 50); -- room for the next version on the same page: no index is written

-- sessions: an entry lives as long as its session's row exists. The row is deleted only once it
-- has expired and under its row lock, which is the one way for a session to die, so that a renewal
-- at the same moment wins or loses as a whole.
CREATE TABLE IF NOT EXISTS hasp_sessions (
  id      text COLLATE "C" PRIMARY KEY,
  expires bigint NOT NULL, -- microseconds since 1970 by this server's clock, as all times here
  channel text NOT NULL DEFAULT '' -- on which its process listens while something waits; '' if it cannot
) WITH (fillfactor = 50);

-- entries are the queues. No foreign keys: a cascade would lock rows of other names. published
-- numbers the values of an entry, counted by its owner: a request that the network delivers late
-- must not replace a value that was published after it, and confirmed.
CREATE TABLE IF NOT EXISTS hasp_entries (
  name      text COLLATE "C" NOT NULL,
  seq       bigint NOT NULL,
  session   text COLLATE "C" NOT NULL,
  id        text COLLATE "C" NOT NULL,
  units     bigint NOT NULL,
  capacity  bigint NOT NULL,
  owner     text NOT NULL,
  since     bigint NOT NULL, -- by the owner's clock, for people
  value     bytea NOT NULL,
  published bigint NOT NULL DEFAULT 0,
  closing   boolean NOT NULL DEFAULT false, -- its session is ending, and may not notify its end: see queue_holder
  PRIMARY KEY (name, seq),
  UNIQUE (session, id)
);

-- holders has the entry that had an advisory lock last, for people, and only if it had it for
-- longer than some milliseconds. Whether that still holds is in the server's own lock table.
CREATE TABLE IF NOT EXISTS hasp_holders (
  name  text COLLATE "C" PRIMARY KEY,
  key   bigint UNIQUE NOT NULL, -- of the advisory lock
  seq   bigint NOT NULL,
  id    text COLLATE "C" NOT NULL,
  owner text NOT NULL,
  since bigint NOT NULL,
  pid   int NOT NULL, -- of the server's process that holds
  used  bigint NOT NULL DEFAULT floor(extract(epoch FROM now()) / 3600)::bigint
) WITH (fillfactor = 50);

-- ceiling has one row, for the tokens of strategy advisory: no token is above the ceiling, and
-- those from base on are given out at present. See hasp_token. A new table begins a second above
-- the clock, and so above what the table before it can have given out; base says that no token may
-- be used yet.
CREATE TABLE IF NOT EXISTS hasp_ceiling (
  one     boolean PRIMARY KEY DEFAULT true CHECK (one),
  base    bigint NOT NULL DEFAULT 9223372036854775807,
  ceiling bigint NOT NULL DEFAULT floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 1000000
);
INSERT INTO hasp_ceiling DEFAULT VALUES ON CONFLICT DO NOTHING;

CREATE SEQUENCE IF NOT EXISTS hasp_tokens OWNED BY hasp_ceiling.ceiling;

-- queues orders the waiters for an advisory lock.
--
-- A statement that waits keeps its view of the database. During that time no dead rows are removed
-- (a standby that waited for days stopped vacuum everywhere), and CREATE INDEX CONCURRENTLY waits
-- for its end; if that is on the connection that has the lock, the server finds a deadlock once
-- deadlock_timeout has passed, and leaves an invalid index. So waiting is cut into slices, each a
-- separate transaction and shorter than that. But a client that leaves a queue of the server's and
-- enters it again is at its end. So the order is not that queue's: each waiter draws a position,
-- keeps it locked for as long as it waits, and waits for the position before it; only the first
-- waits for the lock itself, and no other passes it when its slice ends. At most two wait for any
-- lock of the server's, for the reason given at hasp_slot. The lock of a position belongs to the
-- connection, and ends with that without anybody's help.
--
-- tail is the last position drawn; no client waits at a position up to served. A row that was
-- removed and made again counts from 1: hasp_forget removes it only while there are no waiters.
-- This is a separate table, because a holder changes its row in holders, and must not wait there
-- for those that draw.
CREATE TABLE IF NOT EXISTS hasp_queues (
  name   text COLLATE "C" PRIMARY KEY,
  tail   bigint NOT NULL DEFAULT 0,
  served bigint NOT NULL DEFAULT 0,
  used   bigint NOT NULL DEFAULT floor(extract(epoch FROM now()) / 3600)::bigint
) WITH (fillfactor = 50);

-- evictions has the last eviction of each name, and its reason. It is not a column of names, whose
-- rows are written anew at every acquisition.
CREATE TABLE IF NOT EXISTS hasp_evictions (
  name text COLLATE "C" PRIMARY KEY,
  at   bigint NOT NULL,
  note text NOT NULL
);

-- schema has a row for each version that was installed. swept, in the row of version 2, is when a
-- client last cleaned up.
CREATE TABLE IF NOT EXISTS hasp_schema (
  version int PRIMARY KEY,
  swept   bigint NOT NULL DEFAULT 0
);

-- Those of the tables' keys are made with them. They are named here for `hasp migrate`, which makes
-- again what is missing, and can find an index only by its name.
CREATE UNIQUE INDEX IF NOT EXISTS "hasp_names_pkey" ON hasp_names (name);
CREATE UNIQUE INDEX IF NOT EXISTS "hasp_sessions_pkey" ON hasp_sessions (id);
CREATE UNIQUE INDEX IF NOT EXISTS "hasp_entries_pkey" ON hasp_entries (name, seq);
CREATE UNIQUE INDEX IF NOT EXISTS "hasp_entries_session_id_key" ON hasp_entries (session, id);
CREATE UNIQUE INDEX IF NOT EXISTS "hasp_holders_pkey" ON hasp_holders (name);
CREATE UNIQUE INDEX IF NOT EXISTS "hasp_holders_key_key" ON hasp_holders (key);
CREATE UNIQUE INDEX IF NOT EXISTS "hasp_ceiling_pkey" ON hasp_ceiling (one);
CREATE UNIQUE INDEX IF NOT EXISTS "hasp_queues_pkey" ON hasp_queues (name);
CREATE UNIQUE INDEX IF NOT EXISTS "hasp_evictions_pkey" ON hasp_evictions (name);
CREATE UNIQUE INDEX IF NOT EXISTS "hasp_schema_pkey" ON hasp_schema (version);
CREATE INDEX IF NOT EXISTS "hasp_names_used_idx" ON hasp_names (used);
CREATE INDEX IF NOT EXISTS "hasp_holders_used_idx" ON hasp_holders (used);
CREATE INDEX IF NOT EXISTS "hasp_queues_used_idx" ON hasp_queues (used);

CREATE OR REPLACE FUNCTION hasp_now() RETURNS bigint LANGUAGE sql VOLATILE
RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- level returns its argument, at READ COMMITTED. Above it a statement that has waited for a name
-- goes on with what it saw before it waited: of two readers that leave at the same moment each sees
-- the other, and neither wakes the writer. The error tells the client to begin a transaction at the
-- level that it needs.
CREATE OR REPLACE FUNCTION hasp_level(p_text text) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'hasp needs READ COMMITTED, and this is %', upper(current_setting('transaction_isolation')) USING ERRCODE = 'HASP1';
  END IF;
  RETURN p_text;
END $$;

-- slot takes one of p_slots for the rest of the transaction: a few draws for a free one, so that
-- where there are few waiters none is behind another.
--
-- A process that waits for a lock of the server's for longer than deadlock_timeout (1 s by default)
-- checks for a deadlock: once, and with the whole lock table closed to all others. The check takes
-- the longer, and steeply so, the more processes wait for the same lock: 512 for one lock stopped
-- the server for seconds at a time. So no lock of ours has a long queue. A client that finds it
-- taken first takes one of a few slots, and waits behind those that wait for that slot: the queues
-- are short, and so are the checks.
CREATE OR REPLACE FUNCTION hasp_slot(p_key bigint, p_slots int) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_class int := (p_key # (p_key >> 32))::bit(32)::int; -- locks of two numbers are not those of one
BEGIN
  FOR i IN 1..8 LOOP
    IF pg_try_advisory_xact_lock(v_class, 1751216000 + floor(random() * p_slots)::int) THEN
      RETURN;
    END IF;
  END LOOP;
  PERFORM pg_advisory_xact_lock(v_class, 1751216000 + floor(random() * p_slots)::int);
END $$;

-- turn returns the name when it is this transaction's turn to change its row. The row's own lock
-- would do, and does where this is not called; but each version of a row has a separate queue, so
-- that each commit wakes all waiters, which then wait in the next. p_slots is 0 for a request that
-- is to pass the waiters, as a release is.
--
-- first is for statements that try the row before they call turn: it answers whether the turn is
-- theirs at once. An update that has waited for the row and then leaves it alone keeps its lock;
-- with that it would wait for the turn of a transaction that waits for the row.
CREATE OR REPLACE FUNCTION hasp_first(p_name text) RETURNS boolean LANGUAGE sql VOLATILE
RETURN pg_try_advisory_xact_lock(hashtextextended(p_name COLLATE "C", 7521983763894337537));

CREATE OR REPLACE FUNCTION hasp_turn(p_name text, p_slots int) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_key bigint := hashtextextended(p_name COLLATE "C", 7521983763894337537);
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    PERFORM hasp_level(p_name);
  END IF;
  IF NOT pg_try_advisory_xact_lock(v_key) THEN
    IF p_slots > 0 THEN
      PERFORM hasp_slot(v_key, p_slots);
    END IF;
    PERFORM pg_advisory_xact_lock(v_key);
  END IF;
  RETURN p_name;
END $$;

-- ending is the number of a session's advisory lock. finish has it alone. What makes an entry of
-- the session, or gives it one, shares it with others of these until its commit, and does not wait
-- for it. So finish finds each entry that was made before it, and none is made beside it. The
-- session's row cannot tell that: until finish commits, others see it as it was. If a client dies
-- meanwhile, its lock ends with its transaction.
CREATE OR REPLACE FUNCTION hasp_ending(p_session text) RETURNS bigint LANGUAGE sql IMMUTABLE
RETURN hashtextextended(p_session COLLATE "C", 7521983763894337538);

-- channel is where changes of a name are notified. Two names may share one: a client that watches
-- reads the name, and a notification too many does no harm.
CREATE OR REPLACE FUNCTION hasp_channel(p_name text) RETURNS text LANGUAGE sql IMMUTABLE
RETURN 'hasp_w_' || hashtextextended(p_name COLLATE "C", 0);

-- notify tells the clients that watch a name that it has changed.
CREATE OR REPLACE FUNCTION hasp_notify(p_name text, p_watched bigint) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_watched > hasp_now() THEN
    PERFORM pg_notify(hasp_channel(p_name), '');
  END IF;
END $$;

-- where says which server answers, and on which timeline: a replica that is promoted, and a backup
-- that is restored, continue on another timeline. '' where that cannot be found out.
CREATE OR REPLACE FUNCTION hasp_where() RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN (SELECT s.system_identifier FROM pg_control_system() s)::text || '/' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8);
EXCEPTION WHEN OTHERS THEN -- one of them is refused to this role, or absent in this kind of server
  BEGIN
    RETURN substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8);
  EXCEPTION WHEN OTHERS THEN
    RETURN '';
  END;
END $$;

-- lazily has the commit not wait for the disk, unless p_durable says so. It is for what removes
-- entries. A server that forgets in a crash that an entry has left has one too many: it keeps
-- others out until the entry's owner misses it at a renewal, or until it expires, and lets none in.
-- A grant that follows waits for the disk, and with it for everything before it.
CREATE OR REPLACE FUNCTION hasp_lazily(p_durable boolean) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT p_durable THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  ELSIF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
END $$;

-- queue_holder moves the row holder of a name to the entries, or removes it if it is dead. The
-- caller has the row's lock. It stays in its place: there are no other entries, and each that comes
-- has a higher seq.
--
-- Its session may be ending at this moment (finish), which notifies those that wait behind the
-- entries that it finds. So we lock the session's row until our commit: finish waits for that, and
-- finds the entry. KEY SHARE lets renewals pass. If finish has the row, it may have looked for
-- entries already; we do not wait for it, since it may wait for our name. Then the entry is
-- closing: nobody is told of its end, and those that wait behind it ask soon. A session that has
-- expired needs no lock: who waits behind it asks.
CREATE OR REPLACE FUNCTION hasp_queue_holder(p_name text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_locked boolean;
BEGIN
  PERFORM FROM hasp_sessions s WHERE s.id = (SELECT n.h_session FROM hasp_names n WHERE n.name = p_name) AND s.expires > hasp_now() FOR KEY SHARE SKIP LOCKED;
  v_locked := FOUND;
  INSERT INTO hasp_entries (name, seq, session, id, units, capacity, owner, since, value, closing)
    SELECT n.name, n.h_seq, n.h_session, n.h_id, n.h_units, n.h_capacity, n.h_owner, n.h_since, n.h_value, NOT v_locked
      FROM hasp_names n WHERE n.name = p_name AND n.h_id <> '' AND n.h_until > hasp_now();
  UPDATE hasp_names n SET queued = true, h_id = '', h_session = '', h_owner = '', h_value = '' WHERE n.name = p_name AND n.h_id <> '';
END $$;

-- lock locks the row of a name, moves its row holder to the entries, and returns until when the
-- name is watched; NULL if there is no such name.
CREATE OR REPLACE FUNCTION hasp_lock(p_name text) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n record;
BEGIN
  SELECT o.watched, o.h_id INTO n FROM hasp_names o WHERE o.name = p_name FOR UPDATE;
  IF n.h_id <> '' THEN
    PERFORM hasp_queue_holder(p_name);
  END IF;
  RETURN n.watched;
END $$;

-- settle moves a session's row holders to the entries. One that is dead by its own time and was
-- not removed yet may be moved as well: no other has held since. The caller has the names' locks.
CREATE OR REPLACE FUNCTION hasp_settle(p_session text, p_names text[], p_ids text[]) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO hasp_entries (name, seq, session, id, units, capacity, owner, since, value)
    SELECT n.name, n.h_seq, n.h_session, n.h_id, n.h_units, n.h_capacity, n.h_owner, n.h_since, n.h_value
      FROM unnest(p_names, p_ids) k(name, id) JOIN hasp_names n ON n.name = k.name AND n.h_id = k.id AND n.h_session = p_session;
  UPDATE hasp_names n SET queued = true, h_id = '', h_session = '', h_owner = '', h_value = ''
    FROM unnest(p_names, p_ids) k(name, id) WHERE n.name = k.name AND n.h_id = k.id AND n.h_session = p_session;
END $$;

-- begin makes a session. Like a renewal and a grant its commit waits for the disk even if the
-- database's default is not to: if a crash of the server forgot it, two could hold.
CREATE OR REPLACE FUNCTION hasp_begin(p_session text, p_ttl bigint, p_channel text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  INSERT INTO hasp_sessions (id, expires, channel) VALUES (p_session, hasp_now() + p_ttl, p_channel);
END $$;

-- renew extends all entries of a session by one row, and notifies no client: nothing has changed.
-- It answers whether the session lives, and how many entries it has with the xor of their seqs, by
-- which the owner notices that some are missing or too many. A renewal that was delayed does not
-- shorten a later one's.
--
-- p_names and p_ids are row holders that the owner knows of. Those that are among the entries when
-- this commits live with the session from then on. A full disk may have no page for that. Then they
-- stay row holders and get the time that the session gets, in their places; o_rows and o_row_seqs
-- are their number and the xor of their seqs, and the owner passes them again the next time.
--
-- It waits for other statements' locks on the names, in the names' order; none that has the lock of
-- a name waits for another name that comes before it, or for a session. But some other program's
-- transaction may have the row of a name for hours, and all entries of the session would wait. So
-- after a twentieth of the TTL it goes on without those: o_late are their ids, and they have the
-- time that they were made with. The lock comes first, by the name alone, so that what follows sees
-- what its last holder has committed; and outside of the block whose failure would give it up.
CREATE OR REPLACE FUNCTION hasp_renew(p_session text, p_ttl bigint, p_names text[], p_ids text[],
  OUT o_alive boolean, OUT o_entries bigint, OUT o_seqs bigint, OUT o_rows bigint, OUT o_row_seqs bigint, OUT o_late text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0 AS $$
DECLARE
  v_names text[] := p_names;
  v_ids   text[] := p_ids;
  v_free  text[]; -- names whose rows no other has locked
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  UPDATE hasp_sessions s SET expires = greatest(s.expires, hasp_now() + p_ttl)
    WHERE s.id = p_session AND s.expires > hasp_now();
  o_alive := FOUND;
  o_rows := 0;
  o_row_seqs := 0;
  o_late := '';
  IF p_names <> '{}' THEN
    PERFORM set_config('lock_timeout', greatest(p_ttl / 20000, 10)::text, true);
    BEGIN
      PERFORM FROM hasp_names n WHERE n.name = ANY (p_names) ORDER BY n.name FOR UPDATE;
    EXCEPTION WHEN lock_not_available THEN
      SELECT array_agg(f.name) INTO v_free FROM (
        SELECT n.name FROM hasp_names n WHERE n.name = ANY (p_names) FOR UPDATE SKIP LOCKED) f;
      SELECT coalesce(array_agg(k.name) FILTER (WHERE k.name = ANY (v_free)), '{}'), coalesce(array_agg(k.id) FILTER (WHERE k.name = ANY (v_free)), '{}'),
          coalesce(string_agg(k.id, ' ') FILTER (WHERE (k.name = ANY (v_free)) IS NOT TRUE), '')
        INTO v_names, v_ids, o_late FROM unnest(p_names, p_ids) k(name, id);
    END;
    PERFORM set_config('lock_timeout', '0', true);
    BEGIN
      PERFORM hasp_settle(p_session, v_names, v_ids);
    EXCEPTION WHEN disk_full THEN
      IF o_alive THEN
        WITH kept AS (
          UPDATE hasp_names n SET h_until = greatest(n.h_until, hasp_now() + p_ttl)
            FROM unnest(v_names, v_ids) k(name, id) WHERE n.name = k.name AND n.h_id = k.id AND n.h_session = p_session RETURNING n.h_seq)
        SELECT count(*), coalesce(bit_xor(kept.h_seq), 0) INTO o_rows, o_row_seqs FROM kept;
      END IF;
    END;
  END IF;
  SELECT count(*), coalesce(bit_xor(e.seq), 0) INTO o_entries, o_seqs FROM hasp_entries e WHERE e.session = p_session;
END $$;

-- walk goes through a queue from its front to the first entry that is denied, under the name's row
-- lock, which the caller has: all entries before that one hold, and all behind it wait. On its way
-- it removes the entries of dead sessions, and notifies those that fit now and did not fit with the
-- removed ones, or with the entry that has just left (p_seq, p_units), in front of them.
--
-- A dead session's row may be locked: by its renewal, or by a walk in another queue. We do not wait
-- for it while we have our name's lock, so that two walks do not wait for each other; the session
-- counts as alive, and as expiring now, so that a client asks again soon; o_unsure says that this
-- happened. An entry that is closing counts as expiring now, too.
CREATE OR REPLACE FUNCTION hasp_walk(p_name text, p_seq bigint, p_units bigint, p_id text,
  OUT o_capacity bigint, OUT o_units bigint, OUT o_denied bigint, OUT o_soon bigint, OUT o_holder text, OUT o_unsure boolean) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  r       record;
  v_now   bigint := hasp_now();
  v_freed bigint := 0; -- units of entries that were ahead and have been removed
  v_all   bigint;      -- NULL, no limit; without one the server reads and sorts the whole queue for its front
BEGIN
  o_units := 0;
  o_unsure := false;
  FOR r IN
    SELECT e.seq, e.id, e.session, e.units, e.capacity, e.owner, e.closing, s.expires, s.channel
      FROM (SELECT * FROM hasp_entries f WHERE f.name = p_name ORDER BY f.seq LIMIT v_all) e
      LEFT JOIN LATERAL (SELECT o.expires, o.channel FROM hasp_sessions o WHERE o.id = e.session OFFSET 0) s ON true ORDER BY e.seq
  LOOP
    IF r.expires <= v_now THEN
      DELETE FROM hasp_sessions d WHERE d.id = (
        SELECT s.id FROM hasp_sessions s WHERE s.id = r.session AND s.expires <= v_now FOR UPDATE SKIP LOCKED);
      IF FOUND THEN
        r.expires := NULL;
      ELSE
        o_unsure := true;
      END IF;
    END IF;
    IF r.expires IS NULL THEN
      DELETE FROM hasp_entries e WHERE e.name = p_name AND e.seq = r.seq;
      v_freed := v_freed + r.units;
      CONTINUE;
    END IF;
    IF p_seq < r.seq THEN
      v_freed := v_freed + p_units;
      p_units := 0;
    END IF;
    o_capacity := r.capacity;
    IF o_units + r.units > o_capacity THEN
      o_denied := r.seq;
      EXIT;
    END IF;
    o_units := o_units + r.units;
    o_soon := least(o_soon, CASE WHEN r.closing THEN v_now ELSE r.expires END);
    o_holder := coalesce(o_holder, r.owner);
    IF o_units + v_freed > o_capacity AND r.id <> p_id AND r.channel <> '' THEN
      PERFORM pg_notify(r.channel, r.session || ' ' || r.id || ' ' || r.seq);
    END IF;
  END LOOP;
END $$;

-- granted is for a client that has just begun to listen. It answers which of these entries are
-- there, each as the notification of its grant would be: SESSION ID SEQ, with SEQ 0 for an entry
-- that waits. It takes no lock. Entries of a name are committed in the order of their seqs, so that those
-- ahead of one are seen with it unless they have gone. Those of a dead session count until they are
-- removed, which notifies.
CREATE OR REPLACE FUNCTION hasp_granted(p_names text[], p_ids text[]) RETURNS SETOF text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT g.session || ' ' || g.id || ' ' || CASE WHEN g.units <= g.capacity THEN g.seq ELSE 0 END FROM (
    SELECT e.session, e.id, e.seq, e.capacity, sum(e.units) OVER (PARTITION BY e.name ORDER BY e.seq) AS units
      FROM hasp_entries e WHERE e.name = ANY (p_names)) g
    WHERE g.id = ANY (p_ids);
$$;

-- enter makes an entry, or finds it, and answers whether it holds. p_mode is "first" when this was
-- never asked for the id, "again" when it was, and "ask" once an entry has been confirmed, which
-- must not be made again. p_ttl is that of the session, 0 if the entry is not to be a row holder.
-- o_state: row (it holds, as row holder) | held | wait | busy | gone | dead (the session) | other
-- (capacity, in o_seq). o_ahead is how many wait in front of this entry, counted to four, and
-- o_retry, in microseconds, when the first of them or of the holders can expire.
--
-- A try that finds the name taken by a dead session's entries, which another client is removing at
-- this moment, is not told so: it is undone and asked again.
CREATE OR REPLACE FUNCTION hasp_enter(p_mode text, p_nowait boolean, p_name text, p_id text, p_session text,
  p_units bigint, p_capacity bigint, p_owner text, p_since bigint, p_value bytea, p_ttl bigint,
  OUT o_state text, OUT o_seq bigint, OUT o_retry bigint, OUT o_ahead bigint, OUT o_holder text) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_row     record;
  v_watched bigint;
  v_own     bigint; -- the seq of an entry that exists already
  v_denied  bigint; -- the first seq that waits
  w         record;
BEGIN
  o_retry := 0;
  o_ahead := 0;
  o_holder := '';
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  -- First the lock, then the seq (a row holder's is apart, in h_seq). A later request gets a higher
  -- seq and sees this entry: each statement in here sees what was committed before it began. A
  -- single statement would wait for the lock, and go on with what it saw before. If the row was
  -- removed because the name was idle, the clock carries on.
  UPDATE hasp_names n SET seq = greatest(n.seq + 1, hasp_now()), used = greatest(n.used, hasp_now() / 3600000000), queued = true WHERE n.name = p_name
    RETURNING n.seq, n.watched, n.h_id INTO v_row;
  IF NOT FOUND AND p_mode <> 'ask' AND p_ttl > 0 THEN
    INSERT INTO hasp_names (name, seq, h_id, h_seq, h_until, h_session, h_units, h_capacity, h_owner, h_since, h_value)
      SELECT p_name, t.now, p_id, t.now, t.now + p_ttl, p_session, p_units, p_capacity, p_owner, p_since, p_value
        FROM (SELECT hasp_now() AS now FROM hasp_sessions s WHERE s.id = p_session AND s.expires > hasp_now()) t
      ON CONFLICT (name) DO NOTHING RETURNING seq INTO o_seq;
    IF FOUND THEN
      o_state := 'row';
      RETURN;
    END IF;
  END IF;
  IF v_row.seq IS NULL THEN
    INSERT INTO hasp_names AS n (name, seq, queued) VALUES (p_name, hasp_now(), true)
      ON CONFLICT (name) DO UPDATE SET seq = greatest(n.seq + 1, excluded.seq), used = greatest(n.used, excluded.used), queued = true
      RETURNING n.seq, n.watched, n.h_id INTO v_row;
  END IF;
  o_seq := v_row.seq;
  v_watched := v_row.watched;
  IF v_row.h_id <> '' THEN
    PERFORM hasp_queue_holder(p_name);
  END IF;
  -- Each statement sees what was committed before it began. So those below have to begin after this one: with the lock in
  -- their WHERE, finish could commit between their beginning and the lock, and they would still see the session.
  IF p_mode <> 'ask' AND NOT pg_try_advisory_xact_lock_shared(hasp_ending(p_session)) THEN
    o_state := 'dead';
    RETURN;
  END IF;
  -- The usual case, an empty queue, takes two statements and no walk.
  IF p_mode <> 'ask' THEN
    INSERT INTO hasp_entries (name, seq, session, id, units, capacity, owner, since, value)
      SELECT p_name, o_seq, p_session, p_id, p_units, p_capacity, p_owner, p_since, p_value
        FROM hasp_sessions s WHERE s.id = p_session AND s.expires > hasp_now()
          AND NOT EXISTS (SELECT FROM hasp_entries e WHERE e.name = p_name);
    IF FOUND THEN
      o_state := 'held';
      IF v_watched > 0 THEN
        PERFORM hasp_notify(p_name, v_watched);
      END IF;
      RETURN;
    END IF;
  END IF;
  SELECT * INTO w FROM hasp_walk(p_name, 0::bigint, 0::bigint, p_id);
  v_denied := w.o_denied;
  o_holder := coalesce(w.o_holder, '');
  o_retry := greatest(coalesce(w.o_soon, 0) - hasp_now(), 0);
  IF p_mode <> 'first' THEN
    SELECT e.seq INTO v_own FROM hasp_entries e WHERE e.session = p_session AND e.id = p_id AND e.name = p_name;
  END IF;
  IF v_own IS NOT NULL THEN
    o_seq := v_own;
  ELSIF p_mode = 'ask' THEN
    o_state := 'gone';
    RETURN;
  ELSIF w.o_capacity <> p_capacity AND w.o_unsure THEN
    RAISE EXCEPTION 'the entries of another capacity are just being removed' USING ERRCODE = 'serialization_failure';
  ELSIF w.o_capacity <> p_capacity THEN
    o_state := 'other';
    o_seq := w.o_capacity;
    RETURN;
  ELSE
    IF v_denied IS NULL AND w.o_units + p_units > p_capacity THEN
      v_denied := o_seq; -- it will be the first that waits
    END IF;
    IF p_nowait AND v_denied IS NOT NULL AND w.o_unsure THEN
      RAISE EXCEPTION 'the entries ahead are just being removed' USING ERRCODE = 'serialization_failure';
    ELSIF p_nowait AND v_denied IS NOT NULL THEN
      o_state := 'busy';
      RETURN;
    END IF;
    INSERT INTO hasp_entries (name, seq, session, id, units, capacity, owner, since, value)
      SELECT p_name, o_seq, p_session, p_id, p_units, p_capacity, p_owner, p_since, p_value
        FROM hasp_sessions s WHERE s.id = p_session AND s.expires > hasp_now();
    IF NOT FOUND THEN
      o_state := 'dead';
      RETURN;
    END IF;
    IF v_watched > 0 THEN
      PERFORM hasp_notify(p_name, v_watched);
    END IF;
  END IF;
  IF v_denied IS NULL OR o_seq < v_denied THEN
    o_state := 'held';
    RETURN;
  END IF;
  o_state := 'wait';
  -- One that waits ahead may die before it is granted, and its turn then lasts to its expiry.
  -- Those that have expired already are passed by when their turn comes.
  SELECT count(*), least(o_retry, min(ahead.expires) FILTER (WHERE ahead.expires > hasp_now()) - hasp_now())
    INTO o_ahead, o_retry FROM (
      SELECT s.expires FROM hasp_entries e LEFT JOIN hasp_sessions s ON s.id = e.session
        WHERE e.name = p_name AND e.seq >= v_denied AND e.seq < o_seq ORDER BY e.seq LIMIT 4) ahead;
END $$;

-- leave removes an entry and notifies those that fit in now. p_session is '' when an operator
-- evicts. It answers whether the entry existed. One past its expiry that no client has removed
-- counts as well: no other has held since. p_durable: see lazily.
CREATE OR REPLACE FUNCTION hasp_leave(p_name text, p_session text, p_id text, p_durable boolean) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_watched bigint;
  gone      record;
BEGIN
  PERFORM hasp_lazily(p_durable);
  v_watched := hasp_lock(p_name);
  IF p_session <> '' THEN
    DELETE FROM hasp_entries e WHERE e.session = p_session AND e.id = p_id AND e.name = p_name
      RETURNING e.seq, e.units, e.session, EXISTS (SELECT FROM hasp_entries o WHERE o.name = p_name AND o.seq <> e.seq) AS others INTO gone;
  ELSE
    DELETE FROM hasp_entries e WHERE e.name = p_name AND e.id = p_id
      RETURNING e.seq, e.units, e.session, true AS others INTO gone;
  END IF;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  IF p_session = '' THEN
    PERFORM pg_notify(s.channel, s.id || ' ' || p_id || ' -' || gone.seq) FROM hasp_sessions s WHERE s.id = gone.session AND s.channel <> '';
  END IF;
  IF gone.others THEN
    PERFORM hasp_walk(p_name, gone.seq, gone.units, ''::text);
  ELSE
    UPDATE hasp_names n SET queued = false WHERE n.name = p_name;
  END IF;
  IF v_watched > 0 THEN
    PERFORM hasp_notify(p_name, v_watched);
  END IF;
  RETURN true;
END $$;

-- evict is leave for an operator, and records it. Records older than p_retention are removed by the
-- next eviction of any name: nothing else cleans this table.
CREATE OR REPLACE FUNCTION hasp_evict(p_name text, p_id text, p_note text, p_retention bigint) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT hasp_leave(p_name, ''::text, p_id, true) THEN
    RETURN false;
  END IF;
  DELETE FROM hasp_evictions v WHERE v.name IN (
    SELECT o.name FROM hasp_evictions o WHERE o.at < hasp_now() - p_retention LIMIT 100 FOR UPDATE SKIP LOCKED);
  INSERT INTO hasp_evictions (name, at, note) VALUES (p_name, hasp_now(), p_note)
    ON CONFLICT (name) DO UPDATE SET at = excluded.at, note = excluded.note;
  RETURN true;
END $$;

-- publish replaces the value of an entry that holds, unless a later value has been published. It
-- answers whether there is such an entry.
CREATE OR REPLACE FUNCTION hasp_publish(p_name text, p_session text, p_id text, p_value bytea, p_published bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_watched bigint;
  v_denied  bigint;
BEGIN
  v_watched := hasp_lock(p_name);
  SELECT w.o_denied INTO v_denied FROM hasp_walk(p_name, 0::bigint, 0::bigint, p_id) w;
  UPDATE hasp_entries e SET value = p_value, published = p_published
    WHERE e.session = p_session AND e.id = p_id AND e.name = p_name AND (v_denied IS NULL OR e.seq < v_denied) AND e.published < p_published;
  IF NOT FOUND THEN
    RETURN EXISTS (SELECT FROM hasp_entries e
      WHERE e.session = p_session AND e.id = p_id AND e.name = p_name AND (v_denied IS NULL OR e.seq < v_denied));
  END IF;
  IF v_watched > 0 THEN
    PERFORM hasp_notify(p_name, v_watched);
  END IF;
  RETURN true;
END $$;

-- downgrade makes an entry that holds smaller, in place, and notifies those that fit in beside it:
-- to the entries behind it, the units given up are those of an entry that has left. It answers
-- whether there is such an entry; one that waits is none. It never makes an entry larger, so that a request that is repeated or
-- late changes nothing. Its commit need not wait for the disk: a server that forgets it takes the
-- entry for larger than its owner does, which denies more entries, not fewer.
CREATE OR REPLACE FUNCTION hasp_downgrade(p_name text, p_session text, p_id text, p_units bigint) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_watched bigint;
  v_denied  bigint;
  v_seq     bigint;
  v_units   bigint;
BEGIN
  -- No entry of the name is made, removed or granted before we commit.
  v_watched := hasp_lock(p_name);
  SELECT w.o_denied INTO v_denied FROM hasp_walk(p_name, 0::bigint, 0::bigint, p_id) w;
  SELECT e.seq, e.units INTO v_seq, v_units FROM hasp_entries e
    WHERE e.session = p_session AND e.id = p_id AND e.name = p_name AND (v_denied IS NULL OR e.seq < v_denied);
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  IF v_units > p_units THEN
    UPDATE hasp_entries e SET units = p_units WHERE e.name = p_name AND e.seq = v_seq;
    PERFORM hasp_walk(p_name, v_seq, v_units - p_units, ''::text);
    IF v_watched > 0 THEN
      PERFORM hasp_notify(p_name, v_watched);
    END IF;
  END IF;
  RETURN true;
END $$;

-- adopt gives another session's entry that holds the id, the session and the owner of this one, in
-- place; the new owner counts what it publishes from the beginning. It answers: held | gone (there
-- is no such entry, or it waits, also where it is ours, or it differs from what its new owner
-- expects, or its session is dead) | dead (the new session).
--
-- Under the name's lock no entry is granted, and none is removed: that the old session may die at
-- this moment, in another queue, does not matter to an entry that has left it. A second client that
-- asks with the same old id finds none; the same client that asks again finds its own.
CREATE OR REPLACE FUNCTION hasp_adopt(p_name text, p_old text, p_seq bigint, p_id text, p_session text,
  p_units bigint, p_capacity bigint, p_owner text, p_since bigint) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_watched bigint;
  v_denied  bigint;
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  v_watched := hasp_lock(p_name);
  SELECT w.o_denied INTO v_denied FROM hasp_walk(p_name, 0::bigint, 0::bigint, p_id) w; -- removes what is dead
  IF EXISTS (SELECT FROM hasp_entries e WHERE e.session = p_session AND e.id = p_id AND e.name = p_name AND e.seq = p_seq
      AND (v_denied IS NULL OR e.seq < v_denied)) THEN
    RETURN 'held';
  END IF;
  IF NOT pg_try_advisory_xact_lock_shared(hasp_ending(p_session)) THEN -- before the statement that looks: see enter
    RETURN 'dead';
  END IF;
  IF NOT EXISTS (SELECT FROM hasp_sessions s WHERE s.id = p_session AND s.expires > hasp_now()) THEN
    RETURN 'dead';
  END IF;
  UPDATE hasp_entries e SET id = p_id, session = p_session, owner = p_owner, since = p_since, published = 0, closing = false
    WHERE e.name = p_name AND e.seq = p_seq AND e.id = p_old AND e.units = p_units AND e.capacity = p_capacity
      AND (v_denied IS NULL OR e.seq < v_denied);
  IF NOT FOUND THEN
    RETURN 'gone';
  END IF;
  IF v_watched > 0 THEN
    PERFORM hasp_notify(p_name, v_watched);
  END IF;
  RETURN 'held';
END $$;

-- finish ends a session: all its entries leave, then its row is deleted. Names are locked in their
-- order, so that two sessions that end at the same time do not wait for each other. Row holders are
-- dead without it. Nobody waits for them: a client that begins to wait has moved them to the
-- entries (queue_holder).
--
-- A request of the session to lock, or to adopt, may run at this moment (the client has given it
-- up, or sends it on another connection). So the session's advisory lock comes first, before any
-- other: it waits for those that are making entries, which wait for nothing meanwhile, and those
-- that come later answer that the session is dead. Then comes the lock of the session's row, as in
-- a renewal: row holders that others moved before it are found here, and those that are moved later
-- are closing. If this is given up or fails, all locks end with it: the session lives on until it
-- is asked again, or expires.
CREATE OR REPLACE FUNCTION hasp_finish(p_session text, p_durable boolean) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  r record;
BEGIN
  PERFORM pg_advisory_xact_lock(hasp_ending(p_session));
  PERFORM FROM hasp_sessions s WHERE s.id = p_session FOR UPDATE;
  FOR r IN SELECT e.name, e.id FROM hasp_entries e WHERE e.session = p_session ORDER BY e.name LOOP
    PERFORM hasp_leave(r.name, p_session, r.id, p_durable);
  END LOOP;
  PERFORM hasp_lazily(p_durable);
  DELETE FROM hasp_sessions s WHERE s.id = p_session;
END $$;

-- watch has the changes of a name notified for p_period. It answers when the next entry can expire,
-- which is not notified, in microseconds from now; 0 if there is none. A client asks for all names
-- that it watches on one connection, and so waits for the row of one for a moment only.
CREATE OR REPLACE FUNCTION hasp_watch(p_name text, p_period bigint) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
  v_soon bigint;
BEGIN
  INSERT INTO hasp_names AS n (name, seq, watched) VALUES (p_name, hasp_now(), hasp_now() + p_period)
    ON CONFLICT (name) DO UPDATE SET watched = greatest(n.watched, excluded.watched);
  PERFORM hasp_lock(p_name); -- its end would not be notified in the row
  SELECT min(CASE WHEN e.closing THEN hasp_now() ELSE s.expires END) INTO v_soon FROM hasp_entries e JOIN hasp_sessions s ON s.id = e.session
    WHERE e.name = p_name AND s.expires > hasp_now();
  RETURN CASE WHEN v_soon IS NULL THEN 0 ELSE greatest(v_soon - hasp_now(), 1) END; -- greatest leaves NULL out
END $$;

-- list is the first p_limit entries of a queue, or all if that is 0. Each entry is looked up by
-- itself: the first of a long queue must not cost a join of all.
CREATE OR REPLACE FUNCTION hasp_list(p_name text, p_limit bigint)
RETURNS TABLE (o_seq bigint, o_id text, o_session text, o_units bigint, o_capacity bigint, o_owner text, o_since bigint, o_value bytea)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT n.h_seq, n.h_id, n.h_session, n.h_units, n.h_capacity, n.h_owner, n.h_since, n.h_value FROM hasp_names n
    WHERE n.name = p_name AND n.h_id <> '' AND n.h_until > hasp_now() AND (SELECT s.expires FROM hasp_sessions s WHERE s.id = n.h_session) > hasp_now()
    UNION ALL (SELECT e.seq, e.id, e.session, e.units, e.capacity, e.owner, e.since, e.value FROM hasp_entries e
    WHERE e.name = p_name AND (SELECT s.expires FROM hasp_sessions s WHERE s.id = e.session) > hasp_now()
    ORDER BY e.seq LIMIT nullif(p_limit, 0));
END $$;

-- find has the names with a prefix that have living entries.
CREATE OR REPLACE FUNCTION hasp_find(p_prefix text) RETURNS SETOF text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT DISTINCT e.name FROM hasp_entries e JOIN hasp_sessions s ON s.id = e.session
    WHERE starts_with(e.name, p_prefix) AND s.expires > hasp_now()
    UNION SELECT n.name FROM hasp_names n JOIN hasp_sessions s ON s.id = n.h_session
    WHERE n.h_id <> '' AND starts_with(n.name, p_prefix) AND n.h_until > hasp_now() AND s.expires > hasp_now();
END $$;

-- From here on: the strategy advisory.
--
-- Each connection has an eviction lock, an advisory lock with the numbers 1751216001 and that of
-- the server's process. A connection takes it, shared, and releases it, before it takes a lock. A
-- client that is about to end the connection of a holder, on an operator's behalf, takes the
-- eviction lock first, and then checks again whether the connection holds what it is to be ended
-- for. So it is never ended for a lock that it has given back, while it holds another.

-- token draws the token of an advisory lock, which the caller holds, and writes nothing for it: it
-- is the next number of a sequence, which the server counts in shared memory. While the server runs
-- the sequence never goes back, and a holder draws after the one before it has released: the tokens
-- of a name grow with its grants.
--
-- A crash may take a sequence back. The server writes it to its log once for 32 numbers, and no
-- commit need wait for that; and one of its processes that crashes is enough, without any sign of a
-- restart that a role may read. A replica, a backup, or tables that were dropped and made again
-- have another sequence. So a number counts only if it is from base to the ceiling (p_base,
-- p_most), as this connection knows them, and those count only if
--
-- the ceiling was on the disk before they were told: raise commits it, and answers after that.
--
-- base was set in the connection's own time, which is within one run of one server; raise says how
-- that is known. Then the sequence has been above base - 1 since.
--
-- Whatever was given out before base is at most the ceiling before it, since no connection used a
-- greater number, and base is above that. So what a crash takes back was never a token, or is below
-- the next base.
--
-- If the connection breaks after this, before or after the answer, the number is left out, or is
-- the token of a lock that is lost; either is below those that follow.
--
-- A number that is ten seconds behind the clock is not used either: tokens that are near the clock
-- grow also where the ceiling was lost, with a backup or a replica that did not have it, since a
-- base is the clock's at least.
CREATE OR REPLACE FUNCTION hasp_token(p_base bigint, p_most bigint, OUT o_seq bigint, OUT o_base bigint, OUT o_most bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  o_seq := nextval($q$hasp_tokens$q$::regclass);
  IF o_seq BETWEEN p_base AND p_most AND o_seq > hasp_now() - 10000000 THEN
    PERFORM set_config('synchronous_commit', 'off', true); -- it matters once in 32 numbers
    o_base := p_base;
    o_most := p_most;
    RETURN;
  END IF;
  SELECT r.o_seq, r.o_base, r.o_most INTO o_seq, o_base, o_most FROM hasp_raise(p_most) r;
END $$;

-- raise reserves the next 1,024 tokens, or four times as many as the last time, up to 262,144, if
-- those have been used up, and draws the first; or it draws from those that another connection has
-- reserved. A token is a microsecond of the clock: each new connection may reserve some, and with
-- many of them tokens would be far ahead of the clock.
--
-- p_known is the greatest ceiling that this connection knows, 0 if none: then it reads it now,
-- before it waits for the row. In either case a ceiling that is greater when it has the row was set
-- in the connection's own time, and base with it. (Those that come at once wait for one that
-- reserves, and use what that has reserved.) A ceiling that can be seen is on the disk, and where a
-- synchronous replica is configured on that: the server shows a commit only then.
--
-- The row is locked until the commit, so that the ceiling of one raise is seen by the next, and two
-- do not set the sequence in another order. It is set before the commit. Until then no connection
-- knows the new ceiling: what others draw meanwhile, or have drawn above the old ceiling and this
-- takes back, they do not use. If the transaction is undone the sequence stays as it is, above the
-- old ceiling, or below base after a crash; so each draws, does not use it, and comes here.
CREATE OR REPLACE FUNCTION hasp_raise(p_known bigint, OUT o_seq bigint, OUT o_base bigint, OUT o_most bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_known bigint := p_known;
  v_now   bigint;
  v_more  bigint := 1023;
BEGIN
  PERFORM set_config('synchronous_commit', NULL, true); -- the role's; a waiter has changed it
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  IF p_known = 0 THEN
    SELECT c.ceiling INTO v_known FROM hasp_ceiling c;
  END IF;
  LOOP
    SELECT c.base, c.ceiling INTO o_base, o_most FROM hasp_ceiling c FOR UPDATE;
    EXIT WHEN FOUND;
    INSERT INTO hasp_ceiling DEFAULT VALUES ON CONFLICT DO NOTHING;
  END LOOP;
  o_seq := nextval($q$hasp_tokens$q$::regclass);
  v_now := hasp_now();
  IF o_most > v_known AND o_seq BETWEEN o_base AND o_most AND o_seq > v_now - 10000000 THEN
    RETURN;
  END IF;
  IF o_seq > o_most AND o_base <= o_most THEN
    v_more := least(262143, 4 * (o_most - o_base) + 3);
  END IF;
  o_base := greatest(o_most + 1, v_now);
  o_most := o_base + v_more;
  o_seq := o_base;
  UPDATE hasp_ceiling c SET base = o_base, ceiling = o_most;
  PERFORM setval($q$hasp_tokens$q$::regclass, o_base, true);
END $$;

-- note records who has an advisory lock, for those who ask. One that arrives late replaces none
-- with a greater token.
CREATE OR REPLACE FUNCTION hasp_note(p_name text, p_key bigint, p_seq bigint, p_id text, p_owner text, p_since bigint, p_pid int) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  INSERT INTO hasp_holders AS h (name, key, seq, id, owner, since, pid) VALUES (p_name, p_key, p_seq, p_id, p_owner, p_since, p_pid)
    ON CONFLICT (name) DO UPDATE SET key = p_key, seq = greatest(h.seq, p_seq), id = p_id, owner = p_owner, since = p_since, pid = p_pid,
      used = greatest(h.used, hasp_now() / 3600000000)
    WHERE h.seq < p_seq;
END $$;

-- try takes an advisory lock, and its token in the same statement, at once or not at all: o_seq is
-- NULL if it is taken.
CREATE OR REPLACE FUNCTION hasp_try(p_name text, p_key bigint, p_base bigint, p_most bigint,
  OUT o_seq bigint, OUT o_base bigint, OUT o_most bigint, OUT o_holder text) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_advisory_lock_shared(1751216001, pg_backend_pid()), pg_advisory_unlock_shared(1751216001, pg_backend_pid());
  IF NOT pg_try_advisory_lock(p_key) THEN
    SELECT h.owner INTO o_holder FROM hasp_holders h WHERE h.name = p_name AND hasp_holds(p_key, h.pid);
    RETURN;
  END IF;
  SELECT t.o_seq, t.o_base, t.o_most INTO o_seq, o_base, o_most FROM hasp_token(p_base, p_most) t;
END $$;

-- position answers with 64 bits of the table of queues, the name and the position: the lock of a
-- position has two numbers, the halves of it, (k >> 32)::int and (k << 32 >> 32)::int. The table is
-- among them because advisory locks are the database's, and the positions under another prefix, or
-- in another schema, are counted in another table.
CREATE OR REPLACE FUNCTION hasp_position(p_name text, p_position bigint) RETURNS bigint LANGUAGE sql STABLE
RETURN hashtextextended(($q$hasp_queues$q$::regclass::oid::text || ' ' || p_name) COLLATE "C", p_position);

-- has_waiters answers whether a queue has waiters. The positions of clients that were served, or
-- gave up, are free; where there are many of them it counts them as served, so that not every
-- client goes through them. It does so only with the turn to draw, if that is free at once: its
-- caller may wait for the turn next, and the client that has that wants the same row.
CREATE OR REPLACE FUNCTION hasp_has_waiters(p_name text) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_position bigint;
  k          bigint;
  l          record;
BEGIN
  SELECT n.tail, n.served INTO l FROM hasp_queues n WHERE n.name = p_name;
  v_position := l.tail;
  WHILE v_position > l.served LOOP -- a FOR loop counts in 32 bits
    k := hasp_position(p_name, v_position);
    IF NOT pg_try_advisory_lock_shared((k >> 32)::int, (k << 32 >> 32)::int) THEN
      RETURN true;
    END IF;
    PERFORM pg_advisory_unlock_shared((k >> 32)::int, (k << 32 >> 32)::int);
    v_position := v_position - 1;
  END LOOP;
  IF l.tail > l.served + 8 AND pg_try_advisory_xact_lock(hashtextextended(('queue of ' || p_name) COLLATE "C", 7521983763894337537)) THEN
    UPDATE hasp_queues n SET served = greatest(n.served, l.tail) WHERE n.name = p_name;
  END IF;
  RETURN false;
END $$;

-- draw draws a position and locks it before any other client can see that it is drawn. One client
-- draws at a time, since a row that many want to change has a long queue; the caller commits at
-- once.
CREATE OR REPLACE FUNCTION hasp_draw(p_name text) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_position bigint;
  k          bigint;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true); -- a crash ends all waiters
  PERFORM hasp_turn('queue of ' || p_name, 16);
  LOOP
    UPDATE hasp_queues n SET tail = n.tail + 1, used = greatest(n.used, hasp_now() / 3600000000) WHERE n.name = p_name RETURNING n.tail INTO v_position;
    IF NOT FOUND THEN
      INSERT INTO hasp_queues (name) VALUES (p_name) ON CONFLICT (name) DO NOTHING;
      CONTINUE;
    END IF;
    k := hasp_position(p_name, v_position);
    EXIT WHEN pg_try_advisory_lock((k >> 32)::int, (k << 32 >> 32)::int); -- else these 64 bits are another position's too
  END LOOP;
  RETURN v_position;
END $$;

-- ahead waits for a slice (in milliseconds) and answers whether to commit and ask again: because
-- there still are waiters ahead of a position, or because the positions of many clients that gave
-- up were counted as served, which must not stay uncommitted while the caller waits for the lock.
CREATE OR REPLACE FUNCTION hasp_ahead(p_name text, p_position bigint, p_slice int) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0 AS $$
DECLARE
  v_position bigint := p_position - 1;
  v_served   bigint;
  k          bigint;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  SELECT n.served INTO v_served FROM hasp_queues n WHERE n.name = p_name;
  WHILE v_position > v_served LOOP
    k := hasp_position(p_name, v_position);
    IF NOT pg_try_advisory_lock_shared((k >> 32)::int, (k << 32 >> 32)::int) THEN
      PERFORM set_config('lock_timeout', p_slice::text, true);
      BEGIN
        PERFORM pg_advisory_lock_shared((k >> 32)::int, (k << 32 >> 32)::int);
      EXCEPTION WHEN lock_not_available THEN
        RETURN true;
      END;
      PERFORM set_config('lock_timeout', '0', true);
    END IF;
    PERFORM pg_advisory_unlock_shared((k >> 32)::int, (k << 32 >> 32)::int);
    v_position := v_position - 1;
  END LOOP;
  IF p_position > v_served + 9 THEN
    UPDATE hasp_queues n SET served = greatest(n.served, p_position - 1) WHERE n.name = p_name;
    RETURN true;
  END IF;
  RETURN false;
END $$;

-- give_back releases a position: the client that had it holds now.
CREATE OR REPLACE FUNCTION hasp_give_back(p_name text, p_position bigint) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  k bigint := hasp_position(p_name, p_position);
BEGIN
  PERFORM pg_advisory_unlock((k >> 32)::int, (k << 32 >> 32)::int);
END $$;

-- join takes an advisory lock and its token if it is free and has no waiters; else it draws a
-- position. One of both is NULL.
CREATE OR REPLACE FUNCTION hasp_join(p_name text, p_key bigint, p_base bigint, p_most bigint,
  OUT o_seq bigint, OUT o_base bigint, OUT o_most bigint, OUT o_position bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_advisory_lock_shared(1751216001, pg_backend_pid()), pg_advisory_unlock_shared(1751216001, pg_backend_pid());
  IF NOT EXISTS (SELECT FROM hasp_queues n WHERE n.name = p_name AND n.tail > n.served AND hasp_has_waiters(p_name)) AND pg_try_advisory_lock(p_key) THEN
    SELECT t.o_seq, t.o_base, t.o_most INTO o_seq, o_base, o_most FROM hasp_token(p_base, p_most) t;
  ELSE
    o_position := hasp_draw(p_name);
  END IF;
END $$;

-- holds answers whether a connection has an advisory lock. This one may, though the statement that
-- waited for it has failed: when lock_timeout ends the waiting at the moment in which the lock is
-- granted, a lock of the connection's stays granted. A client that takes it once more then, and
-- gives it back once, keeps it.
CREATE OR REPLACE FUNCTION hasp_holds(p_key bigint, p_pid int) RETURNS boolean LANGUAGE sql VOLATILE
RETURN EXISTS (SELECT FROM pg_locks l WHERE l.pid = p_pid AND l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND l.classid::bigint = (p_key >> 32) & 4294967295 AND l.objid::bigint = p_key & 4294967295);

-- take waits for a slice for those ahead, and as long for the advisory lock itself. NULL: not yet.
-- The position is given back before the token is drawn: the next waiter is to wait for the lock
-- before we release it.
CREATE OR REPLACE FUNCTION hasp_take(p_name text, p_key bigint, p_base bigint, p_most bigint, p_position bigint, p_slice int,
  OUT o_seq bigint, OUT o_base bigint, OUT o_most bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0 AS $$
BEGIN
  IF hasp_ahead(p_name, p_position, p_slice) THEN
    RETURN;
  END IF;
  PERFORM set_config('lock_timeout', p_slice::text, true);
  BEGIN
    PERFORM pg_advisory_lock(p_key);
  EXCEPTION WHEN lock_not_available THEN
    IF NOT hasp_holds(p_key, pg_backend_pid()) THEN
      RETURN;
    END IF;
  END;
  PERFORM set_config('lock_timeout', '0', true);
  PERFORM hasp_give_back(p_name, p_position);
  SELECT t.o_seq, t.o_base, t.o_most INTO o_seq, o_base, o_most FROM hasp_token(p_base, p_most) t;
END $$;

-- obtain takes an advisory lock and its token, and waits for it. If it has to, it says so first: a
-- notice is sent at once, while the answer comes when the lock does. It is a procedure, because a
-- function cannot commit. A procedure that commits cannot have a search_path: nothing in it has to
-- be looked up, and only connections with our settings call it.
CREATE OR REPLACE PROCEDURE hasp_obtain(p_name text, p_key bigint, p_id text, p_base bigint, p_most bigint, p_slice int,
  OUT o_seq bigint, OUT o_base bigint, OUT o_most bigint, OUT o_id text) LANGUAGE plpgsql AS $$
DECLARE
  v_position bigint;
BEGIN
  o_id := p_id;
  SELECT j.o_seq, j.o_base, j.o_most, j.o_position INTO o_seq, o_base, o_most, v_position FROM hasp_join(p_name, p_key, p_base, p_most) j;
  IF v_position IS NULL THEN
    RETURN;
  END IF;
  RAISE NOTICE 'hasp: taken';
  WHILE o_seq IS NULL LOOP
    COMMIT;
    SELECT t.o_seq, t.o_base, t.o_most INTO o_seq, o_base, o_most FROM hasp_take(p_name, p_key, p_base, p_most, v_position, p_slice) t;
  END LOOP;
END $$;

-- From here on: cleaning up, for all strategies.

-- remove_dead removes what dead sessions left, and answers whether there may be more. Each session
-- that has entries is looked up once, by the index on session and id, and not once for each entry.
CREATE OR REPLACE FUNCTION hasp_remove_dead() RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_most CONSTANT int := 100; -- names that are locked at a time
  v_dead text[];
  v_n    int := 0;
  r      record;
BEGIN
  DELETE FROM hasp_sessions d WHERE d.id IN (
    SELECT s.id FROM hasp_sessions s WHERE s.expires <= hasp_now() LIMIT 10 * v_most FOR UPDATE SKIP LOCKED);
  WITH RECURSIVE owner(id) AS (
    (SELECT e.session FROM hasp_entries e ORDER BY e.session LIMIT 1)
    UNION ALL
    SELECT (SELECT e.session FROM hasp_entries e WHERE e.session > owner.id ORDER BY e.session LIMIT 1) FROM owner WHERE owner.id IS NOT NULL
  )
  SELECT array_agg(owner.id) INTO v_dead FROM owner
    WHERE owner.id IS NOT NULL AND NOT EXISTS (SELECT FROM hasp_sessions s WHERE s.id = owner.id);
  IF v_dead IS NULL THEN
    RETURN false;
  END IF;
  FOR r IN SELECT DISTINCT e.name FROM hasp_entries e WHERE e.session = ANY (v_dead) LIMIT v_most LOOP
    v_n := v_n + 1;
    PERFORM FROM hasp_names n WHERE n.name = r.name FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
      PERFORM hasp_walk(r.name, 0::bigint, 0::bigint, ''::text);
      DELETE FROM hasp_entries e
        WHERE e.name = r.name AND NOT EXISTS (SELECT FROM hasp_sessions s WHERE s.id = e.session);
    END IF;
  END LOOP;
  RETURN v_n = v_most;
END $$;

-- forget removes names that were idle for p_idle hours, and answers whether there may be more. A
-- name that is held, waited for or watched is in use: its hour is moved, so that it does not delay
-- others the next time. It never waits for a lock. A client that uses a name at the same moment has
-- moved its hour when we get the row's lock, or finds no row and makes a new one.
CREATE OR REPLACE FUNCTION hasp_forget(p_idle bigint) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_most CONSTANT int := 1000;
  v_hour bigint := hasp_now() / 3600000000;
  v_n    int := 0;
  v_more boolean;
  v_keys bigint[];
  r      record;
BEGIN
  FOR r IN SELECT n.name, n.watched, n.h_id <> '' AND n.h_until > hasp_now() AS held FROM hasp_names n WHERE n.used < v_hour - p_idle ORDER BY n.used LIMIT v_most FOR UPDATE SKIP LOCKED LOOP
    v_n := v_n + 1;
    IF r.watched > hasp_now() OR r.held OR EXISTS (SELECT FROM hasp_entries e WHERE e.name = r.name) THEN
      UPDATE hasp_names n SET used = v_hour WHERE n.name = r.name;
    ELSE
      DELETE FROM hasp_names n WHERE n.name = r.name;
    END IF;
  END LOOP;
  v_more := v_n = v_most;
  v_n := 0;
  SELECT array_agg(l.classid::bigint << 32 | l.objid::bigint) INTO v_keys FROM pg_locks l WHERE l.locktype = 'advisory' AND l.objsubid = 1;
  FOR r IN SELECT h.name, h.key FROM hasp_holders h WHERE h.used < v_hour - p_idle ORDER BY h.used LIMIT v_most FOR UPDATE SKIP LOCKED LOOP
    v_n := v_n + 1;
    IF coalesce(r.key = ANY (v_keys), false) OR hasp_has_waiters(r.name) THEN
      UPDATE hasp_holders h SET used = v_hour WHERE h.name = r.name;
    ELSE
      DELETE FROM hasp_holders h WHERE h.name = r.name;
    END IF;
  END LOOP;
  v_more := v_more OR v_n = v_most;
  v_n := 0;
  FOR r IN SELECT l.name FROM hasp_queues l WHERE l.used < v_hour - p_idle ORDER BY l.used LIMIT v_most FOR UPDATE SKIP LOCKED LOOP
    v_n := v_n + 1;
    IF hasp_has_waiters(r.name) THEN
      UPDATE hasp_queues l SET used = v_hour WHERE l.name = r.name;
    ELSE
      DELETE FROM hasp_queues l WHERE l.name = r.name;
    END IF;
  END LOOP;
  RETURN v_more OR v_n = v_most;
END $$;

-- tidy is called by every client once in a minute, and does its work for one of them: remove_dead,
-- and forget what has been idle for p_retention (in microseconds). It answers whether there is more
-- to do at once.
CREATE OR REPLACE FUNCTION hasp_tidy(p_retention bigint) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_more boolean;
  v_now  bigint := hasp_now();
BEGIN
  PERFORM FROM hasp_schema v WHERE v.version = 2 AND v.swept NOT BETWEEN v_now - 60000000 AND v_now FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  v_more := hasp_remove_dead();
  v_more := hasp_forget((p_retention + 3599999999) / 3600000000) OR v_more;
  IF NOT v_more THEN
    UPDATE hasp_schema v SET swept = v_now WHERE v.version = 2;
  END IF;
  RETURN v_more;
END $$;
