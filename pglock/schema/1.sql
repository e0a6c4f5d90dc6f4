-- hasp, tables of version 1. "hasp_" stands for the schema and the prefix.
--
-- names has a row for each name that was used lately. Its row lock orders everything that
-- happens to the name, and its seq is the last place given out, which is the fencing
-- token. It is never a SEQUENCE: that hands out numbers in the order of asking, and
-- transactions commit in another.
CREATE TABLE IF NOT EXISTS hasp_names (
  name    text COLLATE "C" PRIMARY KEY, -- compared byte by byte, whatever the database's locale
  seq     bigint NOT NULL,
  watched bigint NOT NULL DEFAULT 0 -- until when changes are notified
) WITH (fillfactor = 50); -- room for the next version on the same page: no index is touched

-- sessions: an entry lives as long as its session's row exists. Deleting that row, which
-- only happens once it has expired and under its row lock, is the one way to die, so that
-- a renewal at the same moment wins or loses as a whole.
CREATE TABLE IF NOT EXISTS hasp_sessions (
  id      text COLLATE "C" PRIMARY KEY,
  expires bigint NOT NULL -- microseconds since 1970 by this server's clock, as all times here
) WITH (fillfactor = 50);

-- entries are the queues. No foreign keys: a cascade would lock rows of other names.
CREATE TABLE IF NOT EXISTS hasp_entries (
  name     text COLLATE "C" NOT NULL,
  seq      bigint NOT NULL,
  session  text COLLATE "C" NOT NULL,
  id       text COLLATE "C" NOT NULL,
  units    bigint NOT NULL,
  capacity bigint NOT NULL,
  owner    text NOT NULL,
  since    bigint NOT NULL, -- by the owner's clock, for people
  value    bytea NOT NULL,
  PRIMARY KEY (name, seq),
  UNIQUE (session, id)
);

-- rows are what strategy=row locks. Nobody ever changes one.
CREATE TABLE IF NOT EXISTS hasp_rows (
  name text COLLATE "C" PRIMARY KEY
);

-- holders has the counter of a name for the strategies advisory and row, and who was
-- granted last. Whether he still holds is for the server's own lock table to say.
CREATE TABLE IF NOT EXISTS hasp_holders (
  name  text COLLATE "C" PRIMARY KEY,
  key   bigint UNIQUE, -- of the advisory lock: two names with one key are refused
  seq   bigint NOT NULL,
  id    text COLLATE "C" NOT NULL,
  owner text NOT NULL,
  since bigint NOT NULL,
  pid   int NOT NULL -- of the server's process that holds
) WITH (fillfactor = 50);

CREATE OR REPLACE FUNCTION hasp_now() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- channel is where changes of a name are notified. Two names may share one: whoever
-- watches looks at the name, and a signal too many does no harm.
CREATE OR REPLACE FUNCTION hasp_channel(p_name text) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT 'hasp_w_' || hashtextextended(p_name COLLATE "C", 0) $$;

-- ring tells whoever watches a name that it has changed.
CREATE OR REPLACE FUNCTION hasp_ring(p_name text, p_watched bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_watched > hasp_now() THEN
    PERFORM pg_notify(hasp_channel(p_name), '');
  END IF;
END $$;

-- begin makes a session. Like a renewal and a grant its commit waits for the disk although
-- the database's default is not to: if a crash of the server forgot it, two could hold.
CREATE OR REPLACE FUNCTION hasp_begin(p_session text, p_ttl bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  INSERT INTO hasp_sessions (id, expires) VALUES (p_session, hasp_now() + p_ttl);
END $$;

-- renew extends all entries of a session by one row, and notifies nobody: nothing has
-- changed. Answers whether the session lives, and how many entries it has with the xor of
-- their places, by which the owner notices that some are missing or too many. A renewal
-- that was delayed takes nothing back.
CREATE OR REPLACE FUNCTION hasp_renew(p_session text, p_ttl bigint,
  OUT o_alive boolean, OUT o_entries bigint, OUT o_places bigint) LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  UPDATE hasp_sessions s SET expires = greatest(s.expires, hasp_now() + p_ttl)
    WHERE s.id = p_session AND s.expires > hasp_now();
  o_alive := FOUND;
  SELECT count(*), coalesce(bit_xor(e.seq), 0) INTO o_entries, o_places FROM hasp_entries e WHERE e.session = p_session;
END $$;

-- walk looks at a queue from its front to the first entry that is denied, under the name's
-- row lock, which the caller has: everybody before that one holds, everybody behind it
-- waits. It buries the dead on its way, and notifies those who fit now and did not fit
-- with the dead, or with the entry that has just left (p_seq, p_units), in front of them.
--
-- A dead session's row may be locked: by its renewal, or by a walk in another queue. We do
-- not wait for it while we have our own name's lock, lest two walks wait for each other;
-- it counts as alive, and as expiring now, so that somebody asks again soon; o_unsure says
-- that this happened.
CREATE OR REPLACE FUNCTION hasp_walk(p_name text, p_seq bigint, p_units bigint, p_id text,
  OUT o_capacity bigint, OUT o_units bigint, OUT o_denied bigint, OUT o_soon bigint, OUT o_holder text, OUT o_unsure boolean) LANGUAGE plpgsql AS $$
DECLARE
  r       record;
  v_now   bigint := hasp_now();
  v_freed bigint := 0; -- units of those who stood ahead and do no longer
BEGIN
  o_units := 0;
  o_unsure := false;
  FOR r IN
    SELECT e.seq, e.id, e.session, e.units, e.capacity, e.owner, s.expires
      FROM hasp_entries e LEFT JOIN hasp_sessions s ON s.id = e.session
      WHERE e.name = p_name ORDER BY e.seq
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
    o_soon := least(o_soon, r.expires);
    o_holder := coalesce(o_holder, r.owner);
    IF o_units + v_freed > o_capacity AND r.id <> p_id THEN
      PERFORM pg_notify('hasp_s_' || r.session, r.id || ' ' || r.seq);
    END IF;
  END LOOP;
END $$;

-- enter makes an entry, or finds it, and answers whether it holds. p_mode is "first" when
-- this was never asked for the id, "again" when it was, and "ask" once an entry has been
-- confirmed, which must not come back. o_state: held | wait | busy | gone | dead (the
-- session) | other (capacity, in o_seq). o_ahead is how many wait in front of this entry, counted to four,
-- and o_retry, in microseconds, when the first of them or of the holders can expire.
CREATE OR REPLACE FUNCTION hasp_enter(p_mode text, p_nowait boolean, p_name text, p_id text, p_session text,
  p_units bigint, p_capacity bigint, p_owner text, p_since bigint, p_value bytea,
  OUT o_state text, OUT o_seq bigint, OUT o_retry bigint, OUT o_ahead bigint, OUT o_holder text) LANGUAGE plpgsql AS $$
DECLARE
  v_watched bigint;
  v_own     bigint; -- the place of an entry that is there already
  v_denied  bigint; -- the first place that waits
  w         record;
BEGIN
  o_retry := 0;
  o_ahead := 0;
  o_holder := '';
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  -- First the lock, then the place: whoever comes later gets a higher place and sees this
  -- entry, because each statement in here sees what was committed before it began. A
  -- single statement could not do that: it would wait for the lock and go on with what it
  -- saw before. The clock carries on where the row was removed because nobody had used it.
  UPDATE hasp_names n SET seq = greatest(n.seq + 1, hasp_now()) WHERE n.name = p_name
    RETURNING n.seq, n.watched INTO o_seq, v_watched;
  IF NOT FOUND THEN
    INSERT INTO hasp_names AS n (name, seq) VALUES (p_name, hasp_now())
      ON CONFLICT (name) DO UPDATE SET seq = greatest(n.seq + 1, excluded.seq)
      RETURNING n.seq, n.watched INTO o_seq, v_watched;
  END IF;
  -- The usual case, an empty queue, is two statements: nobody else pays for a walk.
  IF p_mode <> 'ask' THEN
    INSERT INTO hasp_entries (name, seq, session, id, units, capacity, owner, since, value)
      SELECT p_name, o_seq, p_session, p_id, p_units, p_capacity, p_owner, p_since, p_value
        FROM hasp_sessions s WHERE s.id = p_session AND s.expires > hasp_now()
          AND NOT EXISTS (SELECT FROM hasp_entries e WHERE e.name = p_name);
    IF FOUND THEN
      o_state := 'held';
      IF v_watched > 0 THEN
        PERFORM hasp_ring(p_name, v_watched);
      END IF;
      RETURN;
    END IF;
  END IF;
  SELECT * INTO w FROM hasp_walk(p_name, 0, 0, p_id);
  v_denied := w.o_denied;
  o_holder := coalesce(w.o_holder, '');
  o_retry := greatest(coalesce(w.o_soon, 0) - hasp_now(), 0);
  IF p_mode <> 'first' THEN
    SELECT e.seq INTO v_own FROM hasp_entries e WHERE e.session = p_session AND e.id = p_id;
  END IF;
  IF v_own IS NOT NULL THEN
    o_seq := v_own;
  ELSIF p_mode = 'ask' THEN
    o_state := 'gone';
    RETURN;
  ELSIF w.o_capacity <> p_capacity AND w.o_unsure THEN
    RAISE EXCEPTION 'the entries of another capacity are just being buried' USING ERRCODE = 'serialization_failure';
  ELSIF w.o_capacity <> p_capacity THEN
    o_state := 'other';
    o_seq := w.o_capacity;
    RETURN;
  ELSE
    IF v_denied IS NULL AND w.o_units + p_units > p_capacity THEN
      v_denied := o_seq; -- it will be the first that waits
    END IF;
    IF p_nowait AND v_denied IS NOT NULL THEN
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
      PERFORM hasp_ring(p_name, v_watched);
    END IF;
  END IF;
  IF v_denied IS NULL OR o_seq < v_denied THEN
    o_state := 'held';
    RETURN;
  END IF;
  o_state := 'wait';
  -- One that waits ahead may die before it is granted, and its turn then lasts to its
  -- expiry. Those that have expired already are passed by when their turn comes.
  SELECT count(*), least(o_retry, min(ahead.expires) FILTER (WHERE ahead.expires > hasp_now()) - hasp_now())
    INTO o_ahead, o_retry FROM (
      SELECT s.expires FROM hasp_entries e LEFT JOIN hasp_sessions s ON s.id = e.session
        WHERE e.name = p_name AND e.seq >= v_denied AND e.seq < o_seq ORDER BY e.seq LIMIT 4) ahead;
END $$;

-- leave removes an entry and notifies whoever fits in now. p_session is '' when an operator
-- evicts. Answers whether it was there. An entry past its expiry that nobody has buried was
-- there too: nobody else has held since.
CREATE OR REPLACE FUNCTION hasp_leave(p_name text, p_session text, p_id text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  v_watched bigint;
  gone      record;
BEGIN
  SELECT n.watched INTO v_watched FROM hasp_names n WHERE n.name = p_name FOR UPDATE;
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
    PERFORM pg_notify('hasp_s_' || gone.session, p_id || ' -' || gone.seq);
  END IF;
  IF gone.others THEN
    PERFORM hasp_walk(p_name, gone.seq, gone.units, '');
  END IF;
  IF v_watched > 0 THEN
    PERFORM hasp_ring(p_name, v_watched);
  END IF;
  RETURN true;
END $$;

-- publish replaces the value of an entry that holds. Answers whether there is one.
CREATE OR REPLACE FUNCTION hasp_publish(p_name text, p_session text, p_id text, p_value bytea) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  v_watched bigint;
  v_denied  bigint;
BEGIN
  SELECT n.watched INTO v_watched FROM hasp_names n WHERE n.name = p_name FOR UPDATE;
  SELECT w.o_denied INTO v_denied FROM hasp_walk(p_name, 0, 0, p_id) w;
  UPDATE hasp_entries e SET value = p_value
    WHERE e.session = p_session AND e.id = p_id AND e.name = p_name AND (v_denied IS NULL OR e.seq < v_denied);
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  IF v_watched > 0 THEN
    PERFORM hasp_ring(p_name, v_watched);
  END IF;
  RETURN true;
END $$;

-- watch has the changes of a name notified for p_period. Answers when the next entry can
-- expire, which nobody notifies, in microseconds from now; 0 if there is none.
CREATE OR REPLACE FUNCTION hasp_watch(p_name text, p_period bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_soon bigint;
BEGIN
  INSERT INTO hasp_names AS n (name, seq, watched) VALUES (p_name, hasp_now(), hasp_now() + p_period)
    ON CONFLICT (name) DO UPDATE SET watched = greatest(n.watched, excluded.watched);
  SELECT min(s.expires) INTO v_soon FROM hasp_entries e JOIN hasp_sessions s ON s.id = e.session
    WHERE e.name = p_name AND s.expires > hasp_now();
  RETURN coalesce(greatest(v_soon - hasp_now(), 1), 0);
END $$;

-- finish ends a session: all its entries leave, then its row goes. Names are locked in
-- their order, so that two sessions that end at the same time do not wait for each other.
CREATE OR REPLACE FUNCTION hasp_finish(p_session text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  r record;
BEGIN
  FOR r IN SELECT e.name, e.id FROM hasp_entries e WHERE e.session = p_session ORDER BY e.name LOOP
    PERFORM hasp_leave(r.name, p_session, r.id);
  END LOOP;
  DELETE FROM hasp_sessions s WHERE s.id = p_session;
END $$;

-- grant notes who holds now and draws the token. Whoever calls it holds the lock, so the
-- row's lock is free. The commit does not wait for the disk: what a crash of the server
-- forgets, the clock carries on.
CREATE OR REPLACE FUNCTION hasp_grant(p_name text, p_key bigint, p_id text, p_owner text, p_since bigint, p_pid int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_seq bigint;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  UPDATE hasp_holders h SET seq = greatest(h.seq + 1, hasp_now()), key = p_key, id = p_id, owner = p_owner, since = p_since, pid = p_pid
    WHERE h.name = p_name RETURNING h.seq INTO v_seq;
  IF NOT FOUND THEN
    INSERT INTO hasp_holders AS h (name, key, seq, id, owner, since, pid) VALUES (p_name, p_key, hasp_now(), p_id, p_owner, p_since, p_pid)
      ON CONFLICT (name) DO UPDATE SET seq = greatest(h.seq + 1, excluded.seq), key = excluded.key, id = excluded.id, owner = excluded.owner, since = excluded.since, pid = excluded.pid
      RETURNING h.seq INTO v_seq;
  END IF;
  RETURN v_seq;
END $$;

-- advise takes an advisory lock, and its token in the same statement: at once, or not at
-- all unless p_wait. o_seq is NULL if it is not to be had.
CREATE OR REPLACE FUNCTION hasp_advise(p_wait boolean, p_name text, p_key bigint, p_id text, p_owner text, p_since bigint,
  OUT o_seq bigint, OUT o_holder text) LANGUAGE plpgsql AS $$
BEGIN
  IF p_wait THEN
    PERFORM pg_advisory_lock(p_key);
  ELSIF NOT pg_try_advisory_lock(p_key) THEN
    SELECT h.owner INTO o_holder FROM hasp_holders h WHERE h.name = p_name;
    RETURN;
  END IF;
  o_seq := hasp_grant(p_name, p_key, p_id, p_owner, p_since, pg_backend_pid());
END $$;

-- sweep removes what nobody comes by to remove: dead sessions, their entries, and names
-- that have been idle since p_idle. Never waits for a lock.
CREATE OR REPLACE FUNCTION hasp_sweep(p_idle bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  r record;
BEGIN
  DELETE FROM hasp_sessions d WHERE d.id IN (
    SELECT s.id FROM hasp_sessions s WHERE s.expires <= hasp_now() LIMIT 100 FOR UPDATE SKIP LOCKED);
  FOR r IN
    SELECT DISTINCT e.name FROM hasp_entries e
      WHERE NOT EXISTS (SELECT FROM hasp_sessions s WHERE s.id = e.session) LIMIT 100
  LOOP
    PERFORM FROM hasp_names n WHERE n.name = r.name FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
      PERFORM hasp_walk(r.name, 0, 0, '');
      DELETE FROM hasp_entries e
        WHERE e.name = r.name AND NOT EXISTS (SELECT FROM hasp_sessions s WHERE s.id = e.session);
    END IF;
  END LOOP;
  -- The row's own seq says when it was used last. Whoever enters at the same moment has
  -- moved it when we get the lock, or finds no row and makes a new one.
  DELETE FROM hasp_names d WHERE d.seq < p_idle AND d.name IN (
    SELECT n.name FROM hasp_names n
      WHERE n.seq < p_idle AND NOT EXISTS (SELECT FROM hasp_entries e WHERE e.name = n.name)
      LIMIT 1000 FOR UPDATE SKIP LOCKED);
  DELETE FROM hasp_holders d WHERE d.name IN (
    SELECT h.name FROM hasp_holders h WHERE h.seq < p_idle AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = h.pid)
      LIMIT 1000 FOR UPDATE SKIP LOCKED);
END $$;
