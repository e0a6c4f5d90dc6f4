-- hasp: locks in tables, version 1. Every identifier begins with the prefix.
--
-- Order of row locks, the same everywhere, so that no two transactions can wait for each
-- other: a row of names, entries of that name, sessions in the order of their ids. A
-- transaction locks one name at most. Every row is found by a full unique key, or lies under
-- a name that is locked already, so READ COMMITTED takes no locks on gaps.
--
-- Moments are the server's, in UTC. All strings are binary: a, A and "a " are three names.
SET SESSION sql_mode = 'STRICT_ALL_TABLES'
//
-- seq is the last Seq given out under the name; it is at least the moment of that, in
-- microseconds since 1970. So a name that nobody uses may be forgotten: when it comes back,
-- the clock has gone past it. It may also be older than it was, after a restore, say.
-- departures counts who left while others stayed; see turn.
CREATE TABLE IF NOT EXISTS {p}names (
  name VARBINARY(512) NOT NULL PRIMARY KEY,
  seq BIGINT UNSIGNED NOT NULL,
  departures BIGINT UNSIGNED NOT NULL DEFAULT 0
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC
//
-- A session lives until expires. Whoever finds it dead sets expires to 1970, which is final,
-- and claims the removal of its entries. bell counts the grants to entries that waited.
CREATE TABLE IF NOT EXISTS {p}sessions (
  id VARBINARY(40) NOT NULL PRIMARY KEY,
  expires DATETIME(6) NOT NULL,
  claimed DATETIME(6) NULL,
  bell BIGINT UNSIGNED NOT NULL DEFAULT 0,
  KEY (expires)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC
//
-- granted is NULL while the entry waits, 0 if it has held since it entered, and else the
-- ring of its session's bell that told of the grant. turn is what departures must come to
-- before it can be granted, or less: it says how closely a waiter has to listen, and nothing
-- else. edition makes each publication a change: a row that is overwritten with what it had
-- counts as not found.
CREATE TABLE IF NOT EXISTS {p}entries (
  name VARBINARY(512) NOT NULL,
  seq BIGINT UNSIGNED NOT NULL,
  id VARBINARY(40) NOT NULL,
  session VARBINARY(40) NOT NULL,
  granted BIGINT UNSIGNED NULL,
  turn BIGINT UNSIGNED NOT NULL,
  units INT UNSIGNED NOT NULL,
  capacity INT UNSIGNED NOT NULL,
  since BIGINT NOT NULL,
  edition INT UNSIGNED NOT NULL DEFAULT 0,
  owner VARBINARY(2048) NOT NULL,
  value VARBINARY(1024) NOT NULL,
  PRIMARY KEY (name, seq),
  UNIQUE KEY (id),
  KEY (session, granted),
  CONSTRAINT {p}entry_of FOREIGN KEY (session) REFERENCES {p}sessions (id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC
//
-- settle lets those in front hold who fit, and rings their sessions' bells. The caller has
-- locked the name. First it finds the last one that fits, then it grants, sessions in the
-- order of their ids: two releases that grant to the same two sessions would otherwise wait
-- for each other.
DROP PROCEDURE IF EXISTS {p}settle_1
//
CREATE PROCEDURE {p}settle_1(p_name VARBINARY(512))
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_used, v_seq, v_last BIGINT UNSIGNED DEFAULT 0;
  DECLARE v_units, v_capacity BIGINT UNSIGNED;
  DECLARE v_session VARBINARY(40);
  fitting: LOOP
    SET v_seq = NULL;
    SELECT seq, units, capacity INTO v_seq, v_units, v_capacity FROM {p}entries
      WHERE name = p_name AND granted IS NULL AND seq > v_last ORDER BY seq LIMIT 1;
    IF v_last = 0 THEN -- those who hold are in front of the first who waits
      SELECT COALESCE(SUM(units), 0) INTO v_used FROM {p}entries WHERE name = p_name AND seq < v_seq;
    END IF;
    IF v_seq IS NULL OR v_used + v_units > v_capacity THEN
      LEAVE fitting;
    END IF;
    SET v_used = v_used + v_units, v_last = v_seq;
    IF v_used = v_capacity THEN
      LEAVE fitting;
    END IF;
  END LOOP;
  ringing: WHILE v_last > 0 DO
    SET v_session = NULL;
    SELECT MIN(session) INTO v_session FROM {p}entries WHERE name = p_name AND granted IS NULL AND seq <= v_last;
    IF v_session IS NULL THEN
      LEAVE ringing;
    END IF;
    UPDATE {p}sessions SET bell = LAST_INSERT_ID(bell + 1) WHERE id = v_session;
    UPDATE {p}entries SET granted = LAST_INSERT_ID()
      WHERE name = p_name AND granted IS NULL AND seq <= v_last AND session = v_session;
  END WHILE;
END
//
-- enter makes an entry at the end of its queue, or finds it there. p_mode: 0 waits if it
-- must; 1 tries, and leaves nothing if it would have to wait; 2 asks for an entry that the
-- caller knows to have existed, and so never makes one.
--
-- The row of the name is locked by the statement that draws Seq, and stays locked until the
-- entry is there for all to see: nobody with a greater Seq can be seen before it. Everybody
-- in the queue is ahead. If the last one waits, so do we, since those ahead of it are ahead
-- of us; if it holds, all do.
--
-- said: 0 entered or found, 1 busy, 2 another capacity, 3 no such entry or session. stale: 1 some
-- session is dead and nobody removes it; 2 one that is being removed still stands in this queue.
DROP PROCEDURE IF EXISTS {p}enter_1
//
CREATE PROCEDURE {p}enter_1(
  p_mode TINYINT, p_name VARBINARY(512), p_id VARBINARY(40), p_session VARBINARY(40),
  p_units INT UNSIGNED, p_capacity INT UNSIGNED, p_since BIGINT, p_owner VARBINARY(2048), p_value VARBINARY(1024))
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_said TINYINT DEFAULT 0;
  DECLARE v_now, v_seq, v_granted, v_used, v_last, v_turn, v_departures BIGINT UNSIGNED DEFAULT NULL;
  DECLARE v_capacity, v_units INT UNSIGNED;
  DECLARE v_stale TINYINT DEFAULT 0;
  DECLARE v_holder VARBINARY(2048);
  -- A duplicate id is an entry whose making was not answered; a missing parent is a session
  -- that ended.
  DECLARE CONTINUE HANDLER FOR 1062 SET v_said = 4;
  DECLARE CONTINUE HANDLER FOR 1216, 1452 SET v_said = 3;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  IF p_mode = 2 THEN
    SELECT seq INTO v_now FROM {p}names WHERE name = p_name FOR UPDATE;
    CALL {p}settle_1(p_name);
    COMMIT;
    SET v_said = 4;
  ELSE
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    INSERT INTO {p}names (name, seq) VALUES (p_name, v_now)
      ON DUPLICATE KEY UPDATE seq = LAST_INSERT_ID(GREATEST(seq + 1, v_now));
    SET v_seq = IF(ROW_COUNT() = 1, v_now, LAST_INSERT_ID());
    SELECT seq, granted, capacity, units, turn INTO v_last, v_granted, v_capacity, v_units, v_turn FROM {p}entries
      WHERE name = p_name ORDER BY seq DESC LIMIT 1;
    IF v_last IS NULL THEN
      SET v_granted = 0, v_turn = 0;
    ELSEIF v_capacity <> p_capacity THEN
      SET v_said = 2;
    ELSEIF v_granted IS NOT NULL THEN
      SELECT SUM(units) INTO v_used FROM {p}entries WHERE name = p_name;
      SET v_granted = IF(v_used + p_units > p_capacity, NULL, 0);
    END IF;
    IF v_said = 0 AND v_granted IS NULL THEN
      IF p_mode = 1 THEN
        SET v_said = 1;
      ELSE
        -- One more must leave, unless the two could be granted together.
        SELECT departures INTO v_departures FROM {p}names WHERE name = p_name;
        SET v_turn = GREATEST(v_turn, v_departures) + IF(p_units = p_capacity OR v_units = v_capacity, 1, 0);
      END IF;
    END IF;
    IF v_said = 0 THEN
      INSERT INTO {p}entries (name, seq, id, session, granted, turn, units, capacity, since, owner, value)
        VALUES (p_name, v_seq, p_id, p_session, v_granted, v_turn, p_units, p_capacity, p_since, p_owner, p_value);
    END IF;
    IF v_said = 0 THEN
      COMMIT;
    ELSE
      ROLLBACK;
    END IF;
  END IF;
  IF v_said <> 0 AND v_said <> 3 THEN
    -- Perhaps the entry in the way is our own, made by a request whose answer was lost.
    SET v_seq = NULL;
    SELECT seq, granted INTO v_seq, v_granted FROM {p}entries WHERE id = p_id;
    IF v_seq IS NOT NULL THEN
      SET v_said = 0;
    ELSEIF v_said = 4 THEN
      SET v_said = 3;
    ELSE
      SELECT owner INTO v_holder FROM {p}entries WHERE name = p_name ORDER BY seq LIMIT 1;
    END IF;
  END IF;
  IF v_said IN (1, 2) OR v_granted IS NULL THEN
    SELECT EXISTS (SELECT 1 FROM {p}sessions WHERE expires <= UTC_TIMESTAMP(6)
      AND (claimed IS NULL OR claimed <= UTC_TIMESTAMP(6) - INTERVAL 1 SECOND)) INTO v_stale;
  END IF;
  -- Beginning with the dead, who are few, and not with the queue, which may be long.
  IF v_said IN (1, 2) AND NOT v_stale AND EXISTS (SELECT STRAIGHT_JOIN 1 FROM {p}sessions s JOIN {p}entries e ON e.session = s.id
      WHERE s.expires <= UTC_TIMESTAMP(6) AND e.name = p_name) THEN
    SET v_stale = 2;
  END IF;
  SELECT v_said, v_seq, v_granted IS NOT NULL, v_capacity, v_stale, v_holder;
END
//
-- leave removes an entry and lets the next hold, in one step. The name is locked even if
-- nothing of it changes: two that leave at the same moment would each still see the other,
-- and the one who waits for both would be told by neither.
DROP PROCEDURE IF EXISTS {p}leave_1
//
CREATE PROCEDURE {p}leave_1(p_name VARBINARY(512), p_id VARBINARY(40))
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
  SELECT v_there;
END
//
-- renew extends a living session, and tells what the store has of it: how many entries, and
-- their Seqs folded into one number. It touches no row of names and rings no bell.
--
-- The moment is taken before the row's lock is waited for. A session that was declared dead
-- meanwhile is not extended by it, since its expires is 1970.
DROP PROCEDURE IF EXISTS {p}renew_1
//
CREATE PROCEDURE {p}renew_1(p_session VARBINARY(40), p_ttl BIGINT UNSIGNED)
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_there INT;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  UPDATE {p}sessions SET expires = UTC_TIMESTAMP(6) + INTERVAL p_ttl MICROSECOND
    WHERE id = p_session AND expires > UTC_TIMESTAMP(6);
  SET v_there = ROW_COUNT();
  COMMIT;
  SELECT v_there, COUNT(*), COALESCE(BIT_XOR(seq), 0),
    EXISTS (SELECT 1 FROM {p}sessions WHERE expires <= UTC_TIMESTAMP(6)
      AND (claimed IS NULL OR claimed <= UTC_TIMESTAMP(6) - INTERVAL 1 SECOND))
    FROM {p}entries WHERE session = p_session;
END
//
-- listen returns when the session's bell has rung more than p_bell times, when some session
-- is to be removed, when nothing of the session waits, or after p_limit microseconds. It is the only asking of a client,
-- however many of its entries wait: a number in one row.
--
-- How often it looks follows from what can have happened. If r others must hold before us,
-- r hand-overs must come first, none of which takes less than a millisecond; if they are seen
-- to take longer, half of that is waited for each, but no more than 5 ms: all of them may give
-- up at once. Nobody notices a delay of a thirtieth of the time that nothing has moved for
-- (p_still, p_place: from one call to the next). And many waiters of one client take longer to
-- look at. So five hundred clients in one queue look as often, together, as seven who are next
-- in seven queues. A server that is short of processors makes each look long, and is then
-- looked at less, least by those who are far behind: else those who look would take from
-- those who hand over what they need to get on. The one who is next must not wait for long
-- because of that, since all the others wait for it.
DROP PROCEDURE IF EXISTS {p}listen_1
//
CREATE PROCEDURE {p}listen_1(p_session VARBINARY(40), p_bell BIGINT UNSIGNED, p_place INT, p_still BIGINT, p_limit BIGINT)
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_began DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
  DECLARE v_elapsed, v_moved, v_look, v_pace BIGINT DEFAULT 0;
  DECLARE v_bell BIGINT UNSIGNED;
  DECLARE v_waiting, v_rank, v_before INT;
  DECLARE v_stale BOOLEAN;
  SET v_before = p_place, v_moved = IF(p_place < 0, 0, -p_still);
  listening: LOOP
    SET v_bell = NULL;
    SELECT bell, EXISTS (SELECT 1 FROM {p}sessions WHERE expires <= UTC_TIMESTAMP(6)
        AND (claimed IS NULL OR claimed <= UTC_TIMESTAMP(6) - INTERVAL 1 SECOND))
      INTO v_bell, v_stale FROM {p}sessions WHERE id = p_session;
    SET v_elapsed = TIMESTAMPDIFF(MICROSECOND, v_began, UTC_TIMESTAMP(6));
    IF v_bell IS NULL OR v_bell > p_bell OR v_stale OR v_elapsed >= p_limit THEN
      LEAVE listening;
    END IF;
    SELECT COUNT(*), MIN(CAST(w.turn AS SIGNED) - CAST(n.departures AS SIGNED) - 1) INTO v_waiting, v_rank
      FROM (SELECT name, turn FROM {p}entries WHERE session = p_session AND granted IS NULL LIMIT 64) w
      JOIN {p}names n ON n.name = w.name;
    IF v_waiting = 0 THEN
      LEAVE listening;
    END IF;
    SET v_rank = LEAST(GREATEST(v_rank, 0), 10000);
    IF v_rank * 100 + v_waiting <> v_before THEN
      IF v_rank < v_before DIV 100 THEN
        SET v_pace = (v_elapsed - v_moved) DIV (v_before DIV 100 - v_rank);
      END IF;
      SET v_before = v_rank * 100 + v_waiting, v_moved = v_elapsed;
    END IF;
    SET v_look = TIMESTAMPDIFF(MICROSECOND, v_began, UTC_TIMESTAMP(6)) - v_elapsed;
    DO SLEEP(LEAST(1000000, GREATEST(LEAST(10, 3 + v_rank) * v_look,
      400 + v_rank * LEAST(5000, GREATEST(1000, v_pace DIV 2)) + 50 * v_waiting
        + LEAST(100000, (v_elapsed - v_moved) DIV 30))) / 1000000);
  END LOOP;
  SELECT s.bell, v_stale, v_before, v_elapsed - v_moved, e.id, e.seq
    FROM {p}sessions s LEFT JOIN {p}entries e ON e.session = s.id AND e.granted > p_bell
    WHERE s.id = p_session;
END
//
-- For the strategies getlock and row: the tokens, and who drew the last. It is written while
-- the lock is held and says nothing about whether it still is.
CREATE TABLE IF NOT EXISTS {p}bound (
  name VARBINARY(512) NOT NULL PRIMARY KEY,
  seq BIGINT UNSIGNED NOT NULL,
  id VARBINARY(40) NOT NULL,
  connection BIGINT UNSIGNED NOT NULL,
  since BIGINT NOT NULL,
  owner VARBINARY(2048) NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC
//
-- For the strategy row: what transactions lock. The rows have nothing to say but their names.
CREATE TABLE IF NOT EXISTS {p}rows (
  name VARBINARY(512) NOT NULL PRIMARY KEY
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC
//
-- draw gives a token to whoever has the lock, and commits it. It is drawn with the lock in
-- hand: one drawn before could be given to a later holder than a greater one.
DROP PROCEDURE IF EXISTS {p}draw_1
//
CREATE PROCEDURE {p}draw_1(
  p_name VARBINARY(512), p_id VARBINARY(40), p_connection BIGINT UNSIGNED, p_since BIGINT, p_owner VARBINARY(2048))
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_seq BIGINT UNSIGNED DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  INSERT INTO {p}bound (name, seq, id, connection, since, owner) VALUES (p_name, v_seq, p_id, p_connection, p_since, p_owner)
    ON DUPLICATE KEY UPDATE seq = LAST_INSERT_ID(GREATEST(seq + 1, v_seq)),
      id = p_id, connection = p_connection, since = p_since, owner = p_owner;
  SELECT 1, IF(ROW_COUNT() = 1, v_seq, LAST_INSERT_ID()), p_connection;
END
//
-- grab waits for a lock of GET_LOCK and draws the token, in one call.
DROP PROCEDURE IF EXISTS {p}grab_1
//
CREATE PROCEDURE {p}grab_1(
  p_lock VARCHAR(64) CHARACTER SET ascii, p_wait INT, p_name VARBINARY(512), p_id VARBINARY(40), p_since BIGINT, p_owner VARBINARY(2048))
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_got INT;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN DO RELEASE_LOCK(p_lock); RESIGNAL; END;
  SET v_got = GET_LOCK(p_lock, p_wait);
  IF v_got = 1 THEN
    CALL {p}draw_1(p_name, p_id, CONNECTION_ID(), p_since, p_owner);
  ELSE
    SELECT v_got, 0, CONNECTION_ID();
  END IF;
END
//
-- hold locks a name's row and leaves the transaction open. It waits p_wait seconds, or not
-- at all. Its answer begins with 0 if somebody else has the row. (MariaDB allows no NOWAIT in
-- a procedure; a row that is there and skipped says the same.)
DROP PROCEDURE IF EXISTS {p}hold_1
//
CREATE PROCEDURE {p}hold_1(p_name VARBINARY(512), p_wait INT)
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_got, v_there INT DEFAULT 0;
  DECLARE v_name VARBINARY(512);
  DECLARE v_patience BIGINT DEFAULT @@innodb_lock_wait_timeout;
  DECLARE EXIT HANDLER FOR 1205 BEGIN
    ROLLBACK;
    SET SESSION innodb_lock_wait_timeout = v_patience;
    SELECT 0, CONNECTION_ID();
  END;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
    ROLLBACK;
    SET SESSION innodb_lock_wait_timeout = v_patience;
    RESIGNAL;
  END;
  holding: LOOP
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    IF p_wait > 0 THEN
      SET SESSION innodb_lock_wait_timeout = p_wait;
      SELECT name INTO v_name FROM {p}rows WHERE name = p_name FOR UPDATE;
      SET SESSION innodb_lock_wait_timeout = v_patience;
    ELSE
      SELECT name INTO v_name FROM {p}rows WHERE name = p_name FOR UPDATE SKIP LOCKED;
    END IF;
    IF v_name IS NOT NULL THEN
      SET v_got = 1;
      LEAVE holding;
    END IF;
    SELECT COUNT(*) INTO v_there FROM {p}rows WHERE name = p_name;
    ROLLBACK;
    IF v_there > 0 THEN
      LEAVE holding;
    END IF;
    -- Committed before it is locked: a row that only we see would be no meeting place.
    INSERT IGNORE INTO {p}rows (name) VALUES (p_name);
  END LOOP;
  SELECT v_got, CONNECTION_ID();
END
//
CREATE TABLE IF NOT EXISTS {p}schema (
  version INT UNSIGNED NOT NULL PRIMARY KEY
) ENGINE=InnoDB
//
INSERT IGNORE INTO {p}schema (version) VALUES (1)
//
