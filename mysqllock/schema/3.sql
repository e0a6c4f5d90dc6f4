-- hasp: locks in tables, version 3.
SET SESSION sql_mode = 'STRICT_ALL_TABLES'
//
-- store has one row. id is drawn at random when the tables are made and tells them from all
-- others. swept is when somebody last began to forget what nobody uses.
CREATE TABLE IF NOT EXISTS {p}store (
  one TINYINT NOT NULL PRIMARY KEY,
  id VARBINARY(32) NOT NULL,
  swept DATETIME(6) NOT NULL
) ENGINE=InnoDB
//
INSERT IGNORE INTO {p}store (one, id, swept)
  VALUES (1, LEFT(SHA2(CONCAT(UUID(), RAND(), CONNECTION_ID()), 256), 32), '1970-01-01')
//
-- used is the hour, since 1970, in which seq was drawn: what is old is found by an index, and
-- a lock that is taken a thousand times an hour changes that index once. looked is when a row
-- of rows was last found in use. lock_name is what GET_LOCK was called with.
--
-- MySQL has no ADD COLUMN IF NOT EXISTS, and a migration may be applied twice.
DROP PROCEDURE IF EXISTS {p}columns_3
//
CREATE PROCEDURE {p}columns_3()
  SQL SECURITY INVOKER
BEGIN
  IF NOT EXISTS (SELECT 1 FROM information_schema.COLUMNS
      WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{p}names' AND COLUMN_NAME = 'used') THEN
    ALTER TABLE {p}names ADD COLUMN used INT UNSIGNED AS (seq DIV 3600000000) STORED, ADD KEY (used);
  END IF;
  IF NOT EXISTS (SELECT 1 FROM information_schema.COLUMNS
      WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{p}bound' AND COLUMN_NAME = 'used') THEN
    ALTER TABLE {p}bound ADD COLUMN lock_name VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL,
      ADD COLUMN used INT UNSIGNED AS (seq DIV 3600000000) STORED, ADD KEY (used);
  END IF;
  IF NOT EXISTS (SELECT 1 FROM information_schema.COLUMNS
      WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{p}rows' AND COLUMN_NAME = 'looked') THEN
    ALTER TABLE {p}rows ADD COLUMN looked INT UNSIGNED NOT NULL DEFAULT 0, ADD KEY (looked);
  END IF;
END
//
CALL {p}columns_3()
//
DROP PROCEDURE {p}columns_3
//
-- open makes a session. Its answer, and those of renew and leave, say which run of which
-- server has given them: UUID_SHORT begins with the server's id and the second in which it was
-- started, in MySQL as in MariaDB.
DROP PROCEDURE IF EXISTS {p}open_3
//
CREATE PROCEDURE {p}open_3(p_session VARBINARY(40), p_ttl BIGINT UNSIGNED)
  SQL SECURITY INVOKER
BEGIN
  INSERT INTO {p}sessions (id, expires) VALUES (p_session, UTC_TIMESTAMP(6) + INTERVAL p_ttl MICROSECOND);
  SELECT UUID_SHORT() DIV 16777216;
END
//
-- renew extends a living session, and tells what the store has of it: how many entries, and
-- their Seqs folded into one number. It touches no row of names and rings no bell.
--
-- A statement's moment is taken when it begins, and then it may wait: for the row, and for
-- whoever has the table or the whole server locked (ALTER TABLE, FLUSH TABLES WITH READ LOCK).
-- So a renewal that its client has given up can come last of several, with the oldest moment:
-- it must not take the expiry back that the client was told of. A session that was declared
-- dead meanwhile is not extended by an old moment, since its expires is 1970.
--
-- Whether it lives is asked with the row locked, and not taken from ROW_COUNT, which is 0 for
-- an expiry that stays what it was.
DROP PROCEDURE IF EXISTS {p}renew_3
//
CREATE PROCEDURE {p}renew_3(p_session VARBINARY(40), p_ttl BIGINT UNSIGNED)
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_there BOOLEAN DEFAULT NULL;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT expires > UTC_TIMESTAMP(6) INTO v_there FROM {p}sessions WHERE id = p_session FOR UPDATE;
  IF v_there THEN
    UPDATE {p}sessions SET expires = GREATEST(expires, UTC_TIMESTAMP(6) + INTERVAL p_ttl MICROSECOND)
      WHERE id = p_session;
  END IF;
  COMMIT;
  SELECT COALESCE(v_there, FALSE), COUNT(*), COALESCE(BIT_XOR(seq), 0),
    EXISTS (SELECT 1 FROM {p}sessions WHERE expires <= UTC_TIMESTAMP(6)
      AND (claimed IS NULL OR claimed <= UTC_TIMESTAMP(6) - INTERVAL 1 SECOND)),
    EXISTS (SELECT 1 FROM {p}store WHERE ABS(TIMESTAMPDIFF(SECOND, swept, UTC_TIMESTAMP(6))) >= 60),
    UUID_SHORT() DIV 16777216
    FROM {p}entries WHERE session = p_session;
END
//
-- leave removes an entry and lets the next hold, in one step. The name is locked even if
-- nothing of it changes: two that leave at the same moment would each still see the other,
-- and the one who waits for both would be told by neither.
DROP PROCEDURE IF EXISTS {p}leave_3
//
CREATE PROCEDURE {p}leave_3(p_name VARBINARY(512), p_id VARBINARY(40))
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_there INT DEFAULT 0;
  DECLARE v_seq, v_last, v_granted BIGINT UNSIGNED;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT seq INTO v_seq FROM {p}names WHERE name = p_name FOR UPDATE;
  DELETE FROM {p}entries WHERE id = p_id AND name = p_name;
  SET v_there = ROW_COUNT();
  IF v_there > 0 THEN
    SELECT seq, granted INTO v_last, v_granted FROM {p}entries WHERE name = p_name ORDER BY seq DESC LIMIT 1;
    IF v_last IS NOT NULL AND v_granted IS NULL THEN
      UPDATE {p}names SET departures = departures + 1 WHERE name = p_name;
      CALL {p}settle_1(p_name);
    END IF;
  END IF;
  COMMIT;
  SELECT v_there, UUID_SHORT() DIV 16777216;
END
//
-- adopt gives the entry of another session that holds the id, the session and the owner of
-- this one, in its place. Under the name's lock nobody is granted, and nobody removes the
-- entry: a session that dies at this moment removes its entries one by one, each under its
-- name's lock and by its id, which is another then. Whoever asks second with the same old id
-- finds none; whoever asks again finds its own. For those who watch it is a change like a
-- publication; our own go on counting from there.
--
-- said: 0 it is ours, 3 no such entry, or not what its new owner takes it for, 5 our session
-- has ended.
DROP PROCEDURE IF EXISTS {p}adopt_3
//
CREATE PROCEDURE {p}adopt_3(
  p_name VARBINARY(512), p_old VARBINARY(40), p_seq BIGINT UNSIGNED, p_id VARBINARY(40), p_session VARBINARY(40),
  p_units INT UNSIGNED, p_capacity INT UNSIGNED, p_since BIGINT, p_owner VARBINARY(2048))
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_said TINYINT DEFAULT 0;
  DECLARE v_seq, v_found BIGINT UNSIGNED;
  DECLARE v_edition INT UNSIGNED DEFAULT 0;
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
      UPDATE {p}entries SET id = p_id, session = p_session, granted = 0, since = p_since, owner = p_owner, edition = edition + 1
        WHERE id = p_old AND name = p_name;
    END IF;
  END IF;
  SELECT edition INTO v_edition FROM {p}entries WHERE id = p_id AND name = p_name;
  COMMIT;
  SELECT v_said, v_edition;
END
//
-- draw gives a token to whoever has the lock, and commits it. It is drawn with the lock in
-- hand: one drawn before could be given to a later holder than a greater one. p_lock is what
-- GET_LOCK was called with, or NULL.
DROP PROCEDURE IF EXISTS {p}draw_3
//
CREATE PROCEDURE {p}draw_3(
  p_name VARBINARY(512), p_id VARBINARY(40), p_connection BIGINT UNSIGNED, p_since BIGINT, p_owner VARBINARY(2048),
  p_lock VARCHAR(64) CHARACTER SET ascii)
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_seq BIGINT UNSIGNED DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  INSERT INTO {p}bound (name, seq, id, connection, since, owner, lock_name)
    VALUES (p_name, v_seq, p_id, p_connection, p_since, p_owner, p_lock)
    ON DUPLICATE KEY UPDATE seq = LAST_INSERT_ID(GREATEST(seq + 1, v_seq)),
      id = p_id, connection = p_connection, since = p_since, owner = p_owner, lock_name = p_lock;
  SELECT 1, IF(ROW_COUNT() = 1, v_seq, LAST_INSERT_ID()), p_connection;
END
//
-- grab waits for a lock of GET_LOCK and draws the token, in one call.
DROP PROCEDURE IF EXISTS {p}grab_3
//
CREATE PROCEDURE {p}grab_3(
  p_lock VARCHAR(64) CHARACTER SET ascii, p_wait INT, p_name VARBINARY(512), p_id VARBINARY(40), p_since BIGINT, p_owner VARBINARY(2048))
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_got INT;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN DO RELEASE_LOCK(p_lock); RESIGNAL; END;
  SET v_got = GET_LOCK(p_lock, p_wait);
  IF v_got = 1 THEN
    CALL {p}draw_3(p_name, p_id, CONNECTION_ID(), p_since, p_owner, p_lock);
  ELSE
    SELECT v_got, 0, CONNECTION_ID();
  END IF;
END
//
-- sweep forgets what nobody has used for p_retention: names, and the tokens of bound. One
-- client does it for all of a database, once in a minute; where more is left than is taken at
-- a time, whoever comes a second later goes on.
--
-- A token grows over that: it is at least the server's clock, which is past every Seq that is
-- forgotten. What is in use stays, however old: a name with entries, a lock that is held.
--
-- It is the only one to lock several names, and so it waits for none of them: a row that
-- somebody else has locked is in use. Who comes for one that it has locked waits until it is
-- gone, and makes a new one. Who only tries to lock a row, of a name that was idle for so
-- long, is told in these milliseconds that it is taken.
DROP PROCEDURE IF EXISTS {p}sweep_3
//
CREATE PROCEDURE {p}sweep_3(p_retention BIGINT UNSIGNED)
  SQL SECURITY INVOKER
sweeping: BEGIN
  DECLARE v_now BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  DECLARE v_old BIGINT DEFAULT (v_now - p_retention) DIV 3600000000;
  DECLARE v_name, v_found VARBINARY(512);
  DECLARE v_done BOOLEAN DEFAULT FALSE;
  DECLARE v_rows, v_swept INT DEFAULT 0;
  DECLARE c_names CURSOR FOR SELECT n.name FROM {p}names n
    WHERE n.used < v_old AND NOT EXISTS (SELECT 1 FROM {p}entries e WHERE e.name = n.name) ORDER BY n.used LIMIT 500;
  DECLARE c_bound CURSOR FOR SELECT b.name FROM {p}bound b
    WHERE b.used < v_old AND (b.lock_name IS NULL OR IS_USED_LOCK(b.lock_name) IS NULL) ORDER BY b.used LIMIT 500;
  DECLARE c_rows CURSOR FOR SELECT r.name FROM {p}rows r WHERE r.looked < v_old ORDER BY r.looked LIMIT 500;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_done = TRUE;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  UPDATE {p}store SET swept = UTC_TIMESTAMP(6) WHERE ABS(TIMESTAMPDIFF(SECOND, swept, UTC_TIMESTAMP(6))) >= 60;
  IF ROW_COUNT() = 0 THEN
    LEAVE sweeping;
  END IF;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;

  OPEN c_names;
  names_loop: LOOP
    SET v_done = FALSE, v_found = NULL;
    FETCH c_names INTO v_name;
    IF v_done THEN
      LEAVE names_loop;
    END IF;
    SELECT name INTO v_found FROM {p}names WHERE name = v_name AND used < v_old FOR UPDATE SKIP LOCKED;
    -- With the name locked nobody enters.
    IF v_found IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {p}entries WHERE name = v_name) THEN
      DELETE FROM {p}names WHERE name = v_name;
      SET v_swept = v_swept + 1;
    END IF;
  END LOOP;
  CLOSE c_names;

  OPEN c_bound;
  bound_loop: LOOP
    SET v_done = FALSE, v_found = NULL;
    FETCH c_bound INTO v_name;
    IF v_done THEN
      LEAVE bound_loop;
    END IF;
    -- Whoever holds by the strategy row has locked it.
    SELECT COUNT(*) INTO v_rows FROM {p}rows WHERE name = v_name;
    IF v_rows > 0 THEN
      SELECT name INTO v_found FROM {p}rows WHERE name = v_name FOR UPDATE SKIP LOCKED;
      IF v_found IS NULL THEN
        ITERATE bound_loop;
      END IF;
      SET v_found = NULL;
    END IF;
    SELECT name INTO v_found FROM {p}bound WHERE name = v_name AND used < v_old FOR UPDATE SKIP LOCKED;
    IF v_found IS NOT NULL THEN
      DELETE FROM {p}bound WHERE name = v_name;
      SET v_swept = v_swept + 1;
    END IF;
  END LOOP;
  CLOSE c_bound;

  -- A row is gone with its token; one whose token is young is looked at when that may be old.
  OPEN c_rows;
  rows_loop: LOOP
    SET v_done = FALSE, v_found = NULL;
    FETCH c_rows INTO v_name;
    IF v_done THEN
      LEAVE rows_loop;
    END IF;
    SELECT name INTO v_found FROM {p}rows WHERE name = v_name FOR UPDATE SKIP LOCKED;
    IF v_found IS NOT NULL THEN
      IF EXISTS (SELECT 1 FROM {p}bound WHERE name = v_name) THEN
        UPDATE {p}rows SET looked = v_now DIV 3600000000 WHERE name = v_name;
      ELSE
        DELETE FROM {p}rows WHERE name = v_name;
      END IF;
      SET v_swept = v_swept + 1;
    END IF;
  END LOOP;
  CLOSE c_rows;
  COMMIT;
  IF v_swept >= 500 THEN
    UPDATE {p}store SET swept = UTC_TIMESTAMP(6) - INTERVAL 59 SECOND;
  END IF;
END
//
INSERT IGNORE INTO {p}schema (version) VALUES (3)
//
