-- hasp, version 2.
--
-- evictions has who evicted last, by name, and why. Not a column of names, whose rows are
-- written anew at every acquisition.
CREATE TABLE IF NOT EXISTS hasp_evictions (
  name text COLLATE "C" PRIMARY KEY,
  at   bigint NOT NULL,
  note text NOT NULL
);

-- evict is leave for an operator, and notes it. Records that are older than p_retention go
-- with the next eviction, whatever its name: nobody else need look after this table.
CREATE OR REPLACE FUNCTION hasp_evict(p_name text, p_id text, p_note text, p_retention bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF NOT hasp_leave(p_name, '', p_id) THEN
    RETURN false;
  END IF;
  DELETE FROM hasp_evictions v WHERE v.name IN (
    SELECT o.name FROM hasp_evictions o WHERE o.at < hasp_now() - p_retention LIMIT 100 FOR UPDATE SKIP LOCKED);
  INSERT INTO hasp_evictions (name, at, note) VALUES (p_name, hasp_now(), p_note)
    ON CONFLICT (name) DO UPDATE SET at = excluded.at, note = excluded.note;
  RETURN true;
END $$;

-- downgrade makes an entry that holds smaller, in its place, and notifies whoever fits in
-- beside it: to those behind it, the units given up are those of an entry that has left.
-- Answers whether it was there. It never makes an entry larger, so that a request that is
-- repeated or late changes nothing. Its commit need not wait for the disk: a server that
-- forgets it takes the entry for larger than its owner does, which keeps more people out.
CREATE OR REPLACE FUNCTION hasp_downgrade(p_name text, p_session text, p_id text, p_units bigint) RETURNS boolean LANGUAGE plpgsql AS $$
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
    PERFORM hasp_walk(p_name, v_seq, v_units - p_units, '');
    IF v_watched > 0 THEN
      PERFORM hasp_ring(p_name, v_watched);
    END IF;
  END IF;
  RETURN true;
END $$;

-- adopt gives the entry of another session that holds the id, the session and the owner of
-- this one, in its place. Answers: held | gone (there is no such entry, or it is not what its
-- new owner takes it for, or its session is dead) | dead (the new session).
--
-- Under the name's lock nobody is granted, and nobody buries the entry: that its session may
-- die at this moment, in another queue, does not matter to an entry that has left it. Whoever
-- asks second with the same old id finds none; whoever asks again finds its own.
CREATE OR REPLACE FUNCTION hasp_adopt(p_name text, p_old text, p_seq bigint, p_id text, p_session text,
  p_units bigint, p_capacity bigint, p_owner text, p_since bigint) RETURNS text LANGUAGE plpgsql AS $$
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
  SELECT w.o_denied INTO v_denied FROM hasp_walk(p_name, 0, 0, '') w; -- which buries it if it is dead
  UPDATE hasp_entries e SET id = p_id, session = p_session, owner = p_owner, since = p_since
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
