-- hasp, version 6: the queue of those who wait for an advisory lock or a row.
--
-- A statement that waits keeps its view of the database, and as long as it does nobody's dead
-- rows are removed: a standby that waited for days stopped vacuum everywhere. So waiting is cut
-- into slices, each a transaction of its own. But whoever leaves a queue of the server's to
-- stand in it again stands at its end. So the order is not that queue's: each draws a place,
-- keeps it locked for as long as it waits, and waits for the place before his; only the first
-- waits for the lock itself, and nobody passes him when his slice ends. At most two wait for any
-- lock of the server's, which version 4 says why. A place is a lock of the connection's: it
-- ends with that, without anybody's help.
--
-- tail is the last place drawn; below served, and at it, nobody waits any more. A row that was
-- forgotten and made again counts from 1: hasp_forget sees to it that nobody waits then. A table
-- of its own, because whoever is granted changes his row in hasp_holders, and must not wait there for
-- those who draw.
CREATE TABLE IF NOT EXISTS hasp_lines (
  name   text COLLATE "C" PRIMARY KEY,
  tail   bigint NOT NULL DEFAULT 0,
  served bigint NOT NULL DEFAULT 0,
  used   bigint NOT NULL DEFAULT floor(extract(epoch FROM now()) / 3600)::bigint -- the hour: see version 7
) WITH (fillfactor = 50);

-- place answers with 64 bits of the line's table, the name and the place: the lock of a place has two
-- numbers, the halves of it, (k >> 32)::int and (k << 32 >> 32)::int. The table is among them because
-- advisory locks are the database's: without it who waits under another prefix, or in another
-- schema, stood in this line, too, and LockAll under both waited for itself.
CREATE OR REPLACE FUNCTION hasp_place(p_name text, p_place bigint) RETURNS bigint LANGUAGE sql STABLE
RETURN hashtextextended(($q$hasp_lines$q$::regclass::oid::text || ' ' || p_name) COLLATE "C", p_place);

-- waited answers whether anybody waits in a line. Places of those who were served, or gave up, are
-- free; where there are many of them it counts them as served, so that not everybody goes through
-- them. It does so only with the turn to draw, if that is to be had at once: its caller may wait for
-- the turn next, and whoever has that wants the same row.
CREATE OR REPLACE FUNCTION hasp_waited(p_name text) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_place bigint;
  k       bigint;
  l       record;
BEGIN
  SELECT n.tail, n.served INTO l FROM hasp_lines n WHERE n.name = p_name;
  v_place := l.tail;
  WHILE v_place > l.served LOOP -- a FOR loop counts in 32 bits
    k := hasp_place(p_name, v_place);
    IF NOT pg_try_advisory_lock_shared((k >> 32)::int, (k << 32 >> 32)::int) THEN
      RETURN true;
    END IF;
    PERFORM pg_advisory_unlock_shared((k >> 32)::int, (k << 32 >> 32)::int);
    v_place := v_place - 1;
  END LOOP;
  IF l.tail > l.served + 8 AND pg_try_advisory_xact_lock(hashtextextended(('place of ' || p_name) COLLATE "C", 7521983763894337537)) THEN
    UPDATE hasp_lines n SET served = greatest(n.served, l.tail) WHERE n.name = p_name;
  END IF;
  RETURN false;
END $$;

-- ceiling and started are for tokens: see hasp_grant. used is the hour of the last use: see
-- version 7.
ALTER TABLE hasp_holders
  ADD COLUMN IF NOT EXISTS ceiling bigint NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS started bigint NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS used    bigint NOT NULL DEFAULT floor(extract(epoch FROM now()) / 3600)::bigint;

-- grant notes who holds now and draws the token. Whoever calls it holds the lock. The commit
-- does not wait for the disk, but for once in an hour: a crash forgets the newest tokens, and
-- with a clock that has been set back they would be drawn again. So the row has a ceiling, which
-- no token has passed and which is on the disk: a server that has been started since goes on
-- above it. (A crash of one of the server's processes is none of those: it starts itself again
-- without losing the time.)
CREATE OR REPLACE FUNCTION hasp_grant(p_name text, p_key bigint, p_id text, p_owner text, p_since bigint, p_pid int) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_reserve CONSTANT bigint := 3600000000;
  v_started bigint := (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint;
  v_seq     bigint;
  v_raised  boolean;
BEGIN
  LOOP
    UPDATE hasp_holders h SET key = p_key, id = p_id, owner = p_owner, since = p_since, pid = p_pid,
        used = greatest(h.used, hasp_now() / 3600000000),
        seq = greatest(h.seq + 1, hasp_now(), CASE WHEN h.started <> v_started THEN h.ceiling + 1 END)
      WHERE h.name = p_name RETURNING h.seq, h.started <> v_started OR h.seq > h.ceiling INTO v_seq, v_raised;
    EXIT WHEN FOUND;
    INSERT INTO hasp_holders (name, seq, id, owner, since, pid) VALUES (p_name, 0, '', '', 0, 0) ON CONFLICT (name) DO NOTHING;
  END LOOP;
  IF v_raised THEN
    UPDATE hasp_holders h SET ceiling = greatest(h.ceiling, v_seq + v_reserve), started = v_started WHERE h.name = p_name;
    IF current_setting('synchronous_commit') = 'off' THEN
      PERFORM set_config('synchronous_commit', 'local', true);
    END IF;
  ELSE
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
  RETURN v_seq;
END $$;

-- The gate. A connection passes it before it takes a lock, by taking and releasing an advisory lock of
-- its own (1751216001 and its number). Whoever is about to end the connection of a holder, on an
-- operator's behalf, has that lock first, and then looks again whether the connection holds what
-- it is to be ended for. So it is never ended for a lock that it has given back, while it
-- holds another.

-- advise as before, past the gate.
CREATE OR REPLACE FUNCTION hasp_advise(p_wait boolean, p_name text, p_key bigint, p_id text, p_owner text, p_since bigint,
  OUT o_seq bigint, OUT o_holder text) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_advisory_lock_shared(1751216001, pg_backend_pid()), pg_advisory_unlock_shared(1751216001, pg_backend_pid());
  IF p_wait THEN
    PERFORM pg_advisory_lock(p_key);
  ELSIF NOT pg_try_advisory_lock(p_key) THEN
    SELECT h.owner INTO o_holder FROM hasp_holders h WHERE h.name = p_name;
    RETURN;
  END IF;
  o_seq := hasp_grant(p_name, p_key, p_id, p_owner, p_since, pg_backend_pid());
END $$;

-- draw draws a place and locks it before anybody can see that it is drawn. One at a time, since
-- a row that many want to change has a long queue; the caller commits at once.
CREATE OR REPLACE FUNCTION hasp_draw(p_name text) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_place bigint;
  k       bigint;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true); -- a crash ends all who wait
  PERFORM hasp_turn('place of ' || p_name, 16);
  LOOP
    UPDATE hasp_lines n SET tail = n.tail + 1, used = greatest(n.used, hasp_now() / 3600000000) WHERE n.name = p_name RETURNING n.tail INTO v_place;
    IF NOT FOUND THEN
      INSERT INTO hasp_lines (name) VALUES (p_name) ON CONFLICT (name) DO NOTHING;
      CONTINUE;
    END IF;
    k := hasp_place(p_name, v_place);
    EXIT WHEN pg_try_advisory_lock((k >> 32)::int, (k << 32 >> 32)::int); -- else 64 bits have met those of somebody else
  END LOOP;
  RETURN v_place;
END $$;

-- ahead waits for a slice (in milliseconds) and answers whether to commit and ask again: because
-- somebody waits in front of a place yet, or because the places of many who gave up were counted as
-- served, which must not stay uncommitted while the caller waits for the lock.
CREATE OR REPLACE FUNCTION hasp_ahead(p_name text, p_place bigint, p_slice int) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0 AS $$
DECLARE
  v_place  bigint := p_place - 1;
  v_served bigint;
  k        bigint;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  SELECT n.served INTO v_served FROM hasp_lines n WHERE n.name = p_name;
  WHILE v_place > v_served LOOP
    k := hasp_place(p_name, v_place);
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
    v_place := v_place - 1;
  END LOOP;
  IF p_place > v_served + 9 THEN
    UPDATE hasp_lines n SET served = greatest(n.served, p_place - 1) WHERE n.name = p_name;
    RETURN true;
  END IF;
  RETURN false;
END $$;

-- step gives a place back: whoever had it holds now.
CREATE OR REPLACE FUNCTION hasp_step(p_name text, p_place bigint) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  k bigint := hasp_place(p_name, p_place);
BEGIN
  PERFORM pg_advisory_unlock((k >> 32)::int, (k << 32 >> 32)::int);
END $$;

-- join takes an advisory lock and its token if it is free and nobody waits for it; else it draws
-- a place. One of both is NULL.
CREATE OR REPLACE FUNCTION hasp_join(p_name text, p_key bigint, p_id text, p_owner text, p_since bigint, OUT o_seq bigint, OUT o_place bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_advisory_lock_shared(1751216001, pg_backend_pid()), pg_advisory_unlock_shared(1751216001, pg_backend_pid());
  IF NOT EXISTS (SELECT FROM hasp_lines n WHERE n.name = p_name AND n.tail > n.served AND hasp_waited(p_name)) AND pg_try_advisory_lock(p_key) THEN
    o_seq := hasp_grant(p_name, p_key, p_id, p_owner, p_since, pg_backend_pid());
  ELSE
    o_place := hasp_draw(p_name);
  END IF;
END $$;

-- has answers whether this connection has an advisory lock. It may, though the statement that waited
-- for it has failed: when lock_timeout ends the waiting in the moment in which the lock is granted, a
-- lock of the connection's stays granted. Who takes it once more then, and gives it back once, keeps it.
CREATE OR REPLACE FUNCTION hasp_has(p_key bigint) RETURNS boolean LANGUAGE sql VOLATILE
RETURN EXISTS (SELECT FROM pg_locks l WHERE l.pid = pg_backend_pid() AND l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND l.classid::bigint = (p_key >> 32) & 4294967295 AND l.objid::bigint = p_key & 4294967295);

-- seize waits for a slice for those in front, and as long for the advisory lock itself. NULL: not
-- yet. The next in line is let go before the token is drawn: he is to wait for the lock before we
-- give it back.
CREATE OR REPLACE FUNCTION hasp_seize(p_name text, p_key bigint, p_id text, p_owner text, p_since bigint, p_place bigint, p_slice int) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0 AS $$
BEGIN
  IF hasp_ahead(p_name, p_place, p_slice) THEN
    RETURN NULL;
  END IF;
  PERFORM set_config('lock_timeout', p_slice::text, true);
  BEGIN
    PERFORM pg_advisory_lock(p_key);
  EXCEPTION WHEN lock_not_available THEN
    IF NOT hasp_has(p_key) THEN
      RETURN NULL;
    END IF;
  END;
  PERFORM set_config('lock_timeout', '0', true);
  PERFORM hasp_step(p_name, p_place);
  RETURN hasp_grant(p_name, p_key, p_id, p_owner, p_since, pg_backend_pid());
END $$;

-- line_up draws a place and waits until it is the first. These two are procedures, because a
-- function cannot commit. A procedure that commits cannot have a search_path of its own: there
-- is nothing in them that has to be looked for, and only connections call them that have ours.
CREATE OR REPLACE PROCEDURE hasp_line_up(p_name text, p_slice int, OUT o_place bigint) LANGUAGE plpgsql AS $$
BEGIN
  o_place := hasp_draw(p_name);
  COMMIT;
  WHILE hasp_ahead(p_name, o_place, p_slice) LOOP
    COMMIT;
  END LOOP;
END $$;

-- obtain takes an advisory lock and its token, and waits for it. If it has to, it says so
-- first: a notice is sent at once, while the answer comes when the lock does.
CREATE OR REPLACE PROCEDURE hasp_obtain(p_name text, p_key bigint, p_id text, p_owner text, p_since bigint, p_slice int,
  OUT o_seq bigint, OUT o_id text) LANGUAGE plpgsql AS $$
DECLARE
  v_place bigint;
BEGIN
  o_id := p_id;
  SELECT j.o_seq, j.o_place INTO o_seq, v_place FROM hasp_join(p_name, p_key, p_id, p_owner, p_since) j;
  IF v_place IS NULL THEN
    RETURN;
  END IF;
  RAISE NOTICE 'hasp: taken';
  WHILE o_seq IS NULL LOOP
    COMMIT;
    o_seq := hasp_seize(p_name, p_key, p_id, p_owner, p_since, v_place, p_slice);
  END LOOP;
END $$;
