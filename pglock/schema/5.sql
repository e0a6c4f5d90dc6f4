-- hasp, version 5.
--
-- What the name of an operator or a function means depends on the caller's search_path, and a
-- better match of the arguments' types wins over pg_catalog's: whoever may create something in
-- a schema of that path could have every client run his code, with the client's rights. So a
-- function of ours takes the path with it; one that is a single expression is bound when it is
-- created (RETURN), which is as safe and can be inlined. Only pg_catalog and, after it, the
-- session's own temporary things are ever looked in; ours are named with their schema.
--
-- That schema may be one in which others create things, too, and a function of the same name with
-- other arguments could be preferred for a number that is a plain 0, or an argument of a client's.
-- So every argument has the very type of its parameter: then there is no better match.
--
-- First what is altered below is locked, in the order in which the functions take it: they may
-- be under way.
LOCK TABLE hasp_names, hasp_entries, hasp_holders IN ACCESS EXCLUSIVE MODE;

CREATE OR REPLACE FUNCTION hasp_now() RETURNS bigint LANGUAGE sql VOLATILE
RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

CREATE OR REPLACE FUNCTION hasp_channel(p_name text) RETURNS text LANGUAGE sql IMMUTABLE
RETURN 'hasp_w_' || hashtextextended(p_name COLLATE "C", 0);

ALTER FUNCTION hasp_ring(text, bigint) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION hasp_begin(text, bigint) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION hasp_renew(text, bigint) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION hasp_walk(text, bigint, bigint, text) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION hasp_watch(text, bigint) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION hasp_finish(text) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION hasp_slot(bigint, int) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION hasp_await(text, bigint, text, text, bigint) SET search_path = pg_catalog, pg_temp;

-- level returns its argument, at READ COMMITTED. Above it a statement that has waited for a
-- name goes on with what it saw before it waited: of two readers who leave at the same moment
-- each sees the other, and neither wakes the writer. The error tells the client to begin a
-- transaction of its own, at the level it needs.
CREATE OR REPLACE FUNCTION hasp_level(p_text text) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'hasp needs READ COMMITTED, and this is %', upper(current_setting('transaction_isolation')) USING ERRCODE = 'HASP1';
  END IF;
  RETURN p_text;
END $$;

-- turn as before, and level.
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

-- leave, publish, evict and downgrade as before, with arguments of the very types.
CREATE OR REPLACE FUNCTION hasp_leave(p_name text, p_session text, p_id text) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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
    PERFORM hasp_walk(p_name, gone.seq, gone.units, ''::text);
  END IF;
  IF v_watched > 0 THEN
    PERFORM hasp_ring(p_name, v_watched);
  END IF;
  RETURN true;
END $$;

CREATE OR REPLACE FUNCTION hasp_publish(p_name text, p_session text, p_id text, p_value bytea) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_watched bigint;
  v_denied  bigint;
BEGIN
  SELECT n.watched INTO v_watched FROM hasp_names n WHERE n.name = p_name FOR UPDATE;
  SELECT w.o_denied INTO v_denied FROM hasp_walk(p_name, 0::bigint, 0::bigint, p_id) w;
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

CREATE OR REPLACE FUNCTION hasp_evict(p_name text, p_id text, p_note text, p_retention bigint) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT hasp_leave(p_name, ''::text, p_id) THEN
    RETURN false;
  END IF;
  DELETE FROM hasp_evictions v WHERE v.name IN (
    SELECT o.name FROM hasp_evictions o WHERE o.at < hasp_now() - p_retention LIMIT 100 FOR UPDATE SKIP LOCKED);
  INSERT INTO hasp_evictions (name, at, note) VALUES (p_name, hasp_now(), p_note)
    ON CONFLICT (name) DO UPDATE SET at = excluded.at, note = excluded.note;
  RETURN true;
END $$;

CREATE OR REPLACE FUNCTION hasp_downgrade(p_name text, p_session text, p_id text, p_units bigint) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_watched bigint;
  v_seq     bigint;
  v_units   bigint;
BEGIN
  -- Nobody enters, leaves or is granted under the name before we commit.
  SELECT n.watched INTO v_watched FROM hasp_names n WHERE n.name = p_name FOR UPDATE;
  SELECT e.seq, e.units INTO v_seq, v_units FROM hasp_entries e
    WHERE e.session = p_session AND e.id = p_id AND e.name = p_name;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  IF v_units > p_units THEN
    UPDATE hasp_entries e SET units = p_units WHERE e.name = p_name AND e.seq = v_seq;
    PERFORM hasp_walk(p_name, v_seq, v_units - p_units, ''::text);
    IF v_watched > 0 THEN
      PERFORM hasp_ring(p_name, v_watched);
    END IF;
  END IF;
  RETURN true;
END $$;

-- where is which server answers, and in which of its lives: a replica that is promoted, and
-- a backup that is restored, go on under another timeline. '' where that is not to be learnt.
CREATE OR REPLACE FUNCTION hasp_where() RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN (SELECT s.system_identifier FROM pg_control_system() s)::text || '/' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8);
EXCEPTION WHEN OTHERS THEN -- one of them is not for this role, or not on this make of server
  BEGIN
    RETURN substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8);
  EXCEPTION WHEN OTHERS THEN
    RETURN '';
  END;
END $$;

-- list is the first p_limit entries of a queue, or all if that is 0. Each entry is looked
-- up by itself: the first of a long queue must not cost a join of all.
CREATE OR REPLACE FUNCTION hasp_list(p_name text, p_limit bigint)
RETURNS TABLE (o_seq bigint, o_id text, o_session text, o_units bigint, o_capacity bigint, o_owner text, o_since bigint, o_value bytea)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT e.seq, e.id, e.session, e.units, e.capacity, e.owner, e.since, e.value FROM hasp_entries e
    WHERE e.name = p_name AND (SELECT s.expires FROM hasp_sessions s WHERE s.id = e.session) > hasp_now()
    ORDER BY e.seq LIMIT nullif(p_limit, 0);
END $$;

-- find has the names with a prefix that have living entries.
CREATE OR REPLACE FUNCTION hasp_find(p_prefix text) RETURNS SETOF text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT DISTINCT e.name FROM hasp_entries e JOIN hasp_sessions s ON s.id = e.session
    WHERE starts_with(e.name, p_prefix) AND s.expires > hasp_now();
END $$;

-- A value has the number of its publishing, counted by its owner: a request that the network
-- delivers late must not take the place of a value that was published after it, and confirmed.
ALTER TABLE hasp_entries ADD COLUMN IF NOT EXISTS published bigint NOT NULL DEFAULT 0;

-- publish replaces the value of an entry that holds, unless a later one is there. Answers
-- whether there is such an entry.
CREATE OR REPLACE FUNCTION hasp_publish(p_name text, p_session text, p_id text, p_value bytea, p_published bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_watched bigint;
  v_denied  bigint;
BEGIN
  SELECT n.watched INTO v_watched FROM hasp_names n WHERE n.name = p_name FOR UPDATE;
  SELECT w.o_denied INTO v_denied FROM hasp_walk(p_name, 0::bigint, 0::bigint, p_id) w;
  UPDATE hasp_entries e SET value = p_value, published = p_published
    WHERE e.session = p_session AND e.id = p_id AND e.name = p_name AND (v_denied IS NULL OR e.seq < v_denied) AND e.published < p_published;
  IF NOT FOUND THEN
    RETURN EXISTS (SELECT FROM hasp_entries e
      WHERE e.session = p_session AND e.id = p_id AND e.name = p_name AND (v_denied IS NULL OR e.seq < v_denied));
  END IF;
  IF v_watched > 0 THEN
    PERFORM hasp_ring(p_name, v_watched);
  END IF;
  RETURN true;
END $$;

-- adopt as before; the new owner counts what it publishes from the beginning.
CREATE OR REPLACE FUNCTION hasp_adopt(p_name text, p_old text, p_seq bigint, p_id text, p_session text,
  p_units bigint, p_capacity bigint, p_owner text, p_since bigint) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_watched bigint;
  v_denied  bigint;
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  SELECT n.watched INTO v_watched FROM hasp_names n WHERE n.name = p_name FOR UPDATE;
  IF EXISTS (SELECT FROM hasp_entries e WHERE e.session = p_session AND e.id = p_id AND e.name = p_name AND e.seq = p_seq) THEN
    RETURN 'held';
  END IF;
  IF NOT EXISTS (SELECT FROM hasp_sessions s WHERE s.id = p_session AND s.expires > hasp_now()) THEN
    RETURN 'dead';
  END IF;
  SELECT w.o_denied INTO v_denied FROM hasp_walk(p_name, 0::bigint, 0::bigint, ''::text) w; -- which buries it if it is dead
  UPDATE hasp_entries e SET id = p_id, session = p_session, owner = p_owner, since = p_since, published = 0
    WHERE e.name = p_name AND e.seq = p_seq AND e.id = p_old AND e.units = p_units AND e.capacity = p_capacity
      AND (v_denied IS NULL OR e.seq < v_denied);
  IF NOT FOUND THEN
    RETURN 'gone';
  END IF;
  IF v_watched > 0 THEN
    PERFORM hasp_ring(p_name, v_watched);
  END IF;
  RETURN 'held';
END $$;
