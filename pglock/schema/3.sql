-- hasp, version 3: no new tables.
--
-- await takes an advisory lock, and its token in the same statement. If it has to wait, it
-- says so first: a notice is sent at once, while the answer comes when the lock does.
CREATE OR REPLACE FUNCTION hasp_await(p_name text, p_key bigint, p_id text, p_owner text, p_since bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  IF NOT pg_try_advisory_lock(p_key) THEN
    RAISE NOTICE 'hasp: taken';
    PERFORM pg_advisory_lock(p_key);
  END IF;
  RETURN hasp_grant(p_name, p_key, p_id, p_owner, p_since, pg_backend_pid());
END $$;
