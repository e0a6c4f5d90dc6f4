-- hasp, version 4: no new tables.
--
-- Who waits for a lock of the server's for longer than deadlock_timeout (1 s by default) looks
-- whether it is part of a circle: once, and with the whole lock table closed to everybody.
-- That takes the longer, and steeply so, the more wait for the same lock: 512 on one lock
-- stopped the server for seconds at a time. So no lock of ours has a long queue. Whoever finds
-- it taken first takes one of a few slots, and waits behind those who wait for that slot: the
-- queues are short, and so are the looks.

-- slot takes one of p_slots for the rest of the transaction. A few draws, for a free one: with
-- few who wait nobody stands behind another.
CREATE OR REPLACE FUNCTION hasp_slot(p_key bigint, p_slots int) RETURNS void LANGUAGE plpgsql AS $$
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

-- turn returns the name when it is this transaction's turn to change its row. The row's own
-- lock would do, and does where this is not called; but each version of a row has a queue of
-- its own, so that each commit wakes all who wait, to stand in the next. p_slots is 0 for
-- whoever is to pass the crowd, as a release is.
CREATE OR REPLACE FUNCTION hasp_turn(p_name text, p_slots int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_key bigint := hashtextextended(p_name COLLATE "C", 7521983763894337537);
BEGIN
  IF NOT pg_try_advisory_xact_lock(v_key) THEN
    IF p_slots > 0 THEN
      PERFORM hasp_slot(v_key, p_slots);
    END IF;
    PERFORM pg_advisory_xact_lock(v_key);
  END IF;
  RETURN p_name;
END $$;

-- await as before, but by a slot. Its end, with the statement, lets the next one into the
-- queue; so does an error.
CREATE OR REPLACE FUNCTION hasp_await(p_name text, p_key bigint, p_id text, p_owner text, p_since bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  IF NOT pg_try_advisory_lock(p_key) THEN
    RAISE NOTICE 'hasp: taken';
    PERFORM hasp_slot(p_key, 128);
    PERFORM pg_advisory_lock(p_key);
  END IF;
  RETURN hasp_grant(p_name, p_key, p_id, p_owner, p_since, pg_backend_pid());
END $$;
