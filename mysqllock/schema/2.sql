-- hasp: locks in tables, version 2.
SET SESSION sql_mode = 'STRICT_ALL_TABLES'
//
-- evictions has who evicted last, by name, and why.
CREATE TABLE IF NOT EXISTS {p}evictions (
  name VARBINARY(512) NOT NULL PRIMARY KEY,
  at DATETIME(6) NOT NULL,
  note VARBINARY(4096) NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC
//
-- evict is leave for an operator, and notes it in the same step. Records that are older than
-- p_retention go with the next eviction of any name; the row of names is locked before any of
-- evictions, as before any other.
DROP PROCEDURE IF EXISTS {p}evict_2
//
CREATE PROCEDURE {p}evict_2(p_name VARBINARY(512), p_id VARBINARY(40), p_note VARBINARY(4096), p_retention BIGINT UNSIGNED)
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_there INT DEFAULT 0;
  DECLARE v_seq BIGINT UNSIGNED;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT seq INTO v_seq FROM {p}names WHERE name = p_name FOR UPDATE;
  DELETE FROM {p}entries WHERE id = p_id AND name = p_name;
  SET v_there = ROW_COUNT();
  IF v_there > 0 THEN
    UPDATE {p}names SET departures = departures + 1 WHERE name = p_name;
    CALL {p}settle_1(p_name);
    REPLACE INTO {p}evictions (name, at, note) VALUES (p_name, UTC_TIMESTAMP(6), p_note);
  END IF;
  COMMIT;
  DELETE FROM {p}evictions WHERE at < UTC_TIMESTAMP(6) - INTERVAL p_retention MICROSECOND LIMIT 100;
  SELECT v_there;
END
//
-- downgrade makes an entry that holds smaller, in its place, and lets those hold who fit in
-- beside it, in one step. It never makes an entry larger, so that a request that is repeated
-- or late changes nothing. departures stays: nobody has left, and whoever is let in now has
-- waited for one departure and so listens as closely as anybody.
DROP PROCEDURE IF EXISTS {p}downgrade_2
//
CREATE PROCEDURE {p}downgrade_2(p_name VARBINARY(512), p_id VARBINARY(40), p_units INT UNSIGNED)
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_seq BIGINT UNSIGNED;
  DECLARE v_units INT UNSIGNED;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT seq INTO v_seq FROM {p}names WHERE name = p_name FOR UPDATE;
  SELECT units INTO v_units FROM {p}entries WHERE id = p_id AND name = p_name;
  IF v_units > p_units THEN
    UPDATE {p}entries SET units = p_units WHERE id = p_id AND name = p_name;
    CALL {p}settle_1(p_name);
  END IF;
  COMMIT;
  SELECT v_units IS NOT NULL;
END
//
-- adopt gives the entry of another session that holds the id, the session and the owner of
-- this one, in its place. Under the name's lock nobody is granted, and nobody removes the
-- entry: a session that dies at this moment removes its entries one by one, each under its
-- name's lock and by its id, which is another then. Whoever asks second with the same old id
-- finds none; whoever asks again finds its own.
--
-- said: 0 it is ours, 3 no such entry, or not what its new owner takes it for, 5 our session
-- has ended.
DROP PROCEDURE IF EXISTS {p}adopt_2
//
CREATE PROCEDURE {p}adopt_2(
  p_name VARBINARY(512), p_old VARBINARY(40), p_seq BIGINT UNSIGNED, p_id VARBINARY(40), p_session VARBINARY(40),
  p_units INT UNSIGNED, p_capacity INT UNSIGNED, p_since BIGINT, p_owner VARBINARY(2048))
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_said TINYINT DEFAULT 0;
  DECLARE v_seq, v_found BIGINT UNSIGNED;
  DECLARE CONTINUE HANDLER FOR 1216, 1452 SET v_said = 5;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT seq INTO v_seq FROM {p}names WHERE name = p_name FOR UPDATE;
  SELECT seq INTO v_found FROM {p}entries WHERE id = p_id AND name = p_name AND seq = p_seq AND session = p_session;
  IF v_found IS NULL THEN
    -- Read and not locked: whoever buries that session waits for the name.
    SELECT e.seq INTO v_found FROM {p}entries e JOIN {p}sessions s ON s.id = e.session
      WHERE e.id = p_old AND e.name = p_name AND e.seq = p_seq AND e.granted IS NOT NULL
        AND e.units = p_units AND e.capacity = p_capacity AND s.expires > UTC_TIMESTAMP(6);
    IF v_found IS NULL THEN
      SET v_said = 3;
    ELSE
      -- 0 as of an entry that held when it entered: no bell of ours tells of it.
      UPDATE {p}entries SET id = p_id, session = p_session, granted = 0, since = p_since, owner = p_owner
        WHERE id = p_old AND name = p_name;
    END IF;
  END IF;
  COMMIT;
  SELECT v_said;
END
//
INSERT IGNORE INTO {p}schema (version) VALUES (2)
//
