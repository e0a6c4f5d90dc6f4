-- hasp, version 7: what is forgotten, and when.
--
-- used is the hour of a name's last use, by which the idle ones are found with an index. An
-- index on seq would be written at every acquisition; the hour changes once in an hour.
-- Before this, each client read all names each minute, and nobody forgot what advisory and row
-- had noted. hasp_rows has no such column: to add it would wait for every holder of a row. Each of
-- its names has a row in hasp_holders instead, and goes with that.
ALTER TABLE hasp_names ADD COLUMN IF NOT EXISTS used bigint NOT NULL DEFAULT floor(extract(epoch FROM now()) / 3600)::bigint;
DO $$
DECLARE
  r record;
BEGIN
  FOR r IN SELECT t::regclass AS id FROM unnest(ARRAY[$q$hasp_names$q$, $q$hasp_holders$q$, $q$hasp_lines$q$]) t LOOP
    IF NOT EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
        WHERE i.indrelid = r.id AND a.attname = 'used') THEN
      EXECUTE format('CREATE INDEX ON %s (used)', r.id);
    END IF;
  END LOOP;
END $$;

INSERT INTO hasp_holders (name, seq, id, owner, since, pid) SELECT o.name, 0, '', '', 0, 0 FROM hasp_rows o ON CONFLICT (name) DO NOTHING;

-- row makes the row of a new name for strategy row.
CREATE OR REPLACE FUNCTION hasp_row(p_name text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO hasp_holders (name, seq, id, owner, since, pid) VALUES (p_name, 0, '', '', 0, 0) ON CONFLICT (name) DO NOTHING;
  INSERT INTO hasp_rows (name) VALUES (p_name) ON CONFLICT (name) DO NOTHING;
END $$;

-- swept is when somebody looked for idle names last, in the row of this version.
ALTER TABLE hasp_schema ADD COLUMN IF NOT EXISTS swept bigint NOT NULL DEFAULT 0;

-- enter as before; it notes the hour. A try is not told that the name is taken by the dead, because
-- somebody is just burying them: it is undone and asked again.
CREATE OR REPLACE FUNCTION hasp_enter(p_mode text, p_nowait boolean, p_name text, p_id text, p_session text,
  p_units bigint, p_capacity bigint, p_owner text, p_since bigint, p_value bytea,
  OUT o_state text, OUT o_seq bigint, OUT o_retry bigint, OUT o_ahead bigint, OUT o_holder text) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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
  UPDATE hasp_names n SET seq = greatest(n.seq + 1, hasp_now()), used = greatest(n.used, hasp_now() / 3600000000) WHERE n.name = p_name
    RETURNING n.seq, n.watched INTO o_seq, v_watched;
  IF NOT FOUND THEN
    INSERT INTO hasp_names AS n (name, seq) VALUES (p_name, hasp_now())
      ON CONFLICT (name) DO UPDATE SET seq = greatest(n.seq + 1, excluded.seq), used = greatest(n.used, excluded.used)
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
  SELECT * INTO w FROM hasp_walk(p_name, 0::bigint, 0::bigint, p_id);
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
    IF p_nowait AND v_denied IS NOT NULL AND w.o_unsure THEN
      RAISE EXCEPTION 'the entries in the way are just being buried' USING ERRCODE = 'serialization_failure';
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

-- bury removes what dead sessions left, and answers whether there may be more. Each session
-- that has entries is looked up once, by the index on session and id, and not each entry.
CREATE OR REPLACE FUNCTION hasp_bury() RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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

-- forget removes names that nobody has used for p_idle hours, and answers whether there may
-- be more. One that is held, waited for or watched is in use: its hour is moved, so that it is
-- not in the way of others the next time. Never waits for a lock. Whoever uses a name at
-- the same moment has moved its hour when we get the row's lock, or finds no row and makes a
-- new one.
CREATE OR REPLACE FUNCTION hasp_forget(p_idle bigint) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_most CONSTANT int := 1000;
  v_hour bigint := hasp_now() / 3600000000;
  v_n    int := 0;
  v_more boolean;
  v_keys bigint[];
  v_free boolean;
  r      record;
BEGIN
  FOR r IN SELECT n.name, n.watched FROM hasp_names n WHERE n.used < v_hour - p_idle ORDER BY n.used LIMIT v_most FOR UPDATE SKIP LOCKED LOOP
    v_n := v_n + 1;
    IF r.watched > hasp_now() OR EXISTS (SELECT FROM hasp_entries e WHERE e.name = r.name) THEN
      UPDATE hasp_names n SET used = v_hour WHERE n.name = r.name;
    ELSE
      DELETE FROM hasp_names n WHERE n.name = r.name;
    END IF;
  END LOOP;
  v_more := v_n = v_most;
  v_n := 0;
  SELECT array_agg(l.classid::bigint << 32 | l.objid::bigint) INTO v_keys FROM pg_locks l WHERE l.locktype = 'advisory' AND l.objsubid = 1;
  FOR r IN SELECT h.name, h.key, EXISTS (SELECT FROM hasp_rows o WHERE o.name = h.name) AS has_row FROM hasp_holders h WHERE h.used < v_hour - p_idle ORDER BY h.used LIMIT v_most FOR UPDATE SKIP LOCKED LOOP
    v_n := v_n + 1;
    v_free := NOT coalesce(r.key = ANY (v_keys), false) AND NOT hasp_waited(r.name);
    IF v_free AND r.has_row THEN -- whoever misses it makes another
      DELETE FROM hasp_rows d WHERE d.name = (SELECT o.name FROM hasp_rows o WHERE o.name = r.name FOR UPDATE SKIP LOCKED);
      v_free := FOUND; -- else it is held
    END IF;
    IF v_free THEN
      DELETE FROM hasp_holders h WHERE h.name = r.name;
    ELSE
      UPDATE hasp_holders h SET used = v_hour WHERE h.name = r.name;
    END IF;
  END LOOP;
  v_more := v_more OR v_n = v_most;
  v_n := 0;
  FOR r IN SELECT l.name FROM hasp_lines l WHERE l.used < v_hour - p_idle ORDER BY l.used LIMIT v_most FOR UPDATE SKIP LOCKED LOOP
    v_n := v_n + 1;
    IF hasp_waited(r.name) THEN
      UPDATE hasp_lines l SET used = v_hour WHERE l.name = r.name;
    ELSE
      DELETE FROM hasp_lines l WHERE l.name = r.name;
    END IF;
  END LOOP;
  RETURN v_more OR v_n = v_most;
END $$;

-- tidy is called by every client once in a minute, and does its work for one of them: bury, and
-- forget what has been idle for p_retention (in microseconds). Answers whether there is more to
-- do at once.
CREATE OR REPLACE FUNCTION hasp_tidy(p_retention bigint) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_more boolean;
  v_now  bigint := hasp_now();
BEGIN
  PERFORM FROM hasp_schema v WHERE v.version = 7 AND v.swept NOT BETWEEN v_now - 60000000 AND v_now FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  v_more := hasp_bury();
  v_more := hasp_forget((p_retention + 3599999999) / 3600000000) OR v_more;
  IF NOT v_more THEN
    UPDATE hasp_schema v SET swept = v_now WHERE v.version = 7;
  END IF;
  RETURN v_more;
END $$;

-- What clients of earlier versions call.
CREATE OR REPLACE FUNCTION hasp_sweep(p_idle bigint) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM hasp_tidy(hasp_now() - p_idle);
END $$;
