-- hasp: locks in tables, version 2. Every identifier begins with the prefix. Version 1 was changed
-- under its number while hasp was being developed: nobody knows what such tables are, and they are
-- refused.
--
-- Order of row locks, the same everywhere, so that no two transactions wait for each
-- other: a row of names, entries of that name, sessions in the order of their ids. A
-- transaction locks one name at most, but for sweep, which waits for none. Every row is found
-- by a full unique key, or belongs to a name that is locked already, so READ COMMITTED takes no
-- locks on gaps.
--
-- There is one exception: who enters behind a holder that is in the row of its name moves that
-- first, and then makes its own entry, and the foreign keys lock the two sessions in this order.
-- Beside a hand-over between the same two under another name that can be a circle: the server
-- undoes one of the two, whose client repeats it.
--
-- An entry is found by its name, its id and its session, in every statement: an id may be chosen by
-- a client of hasp serve, and so be another client's. Only an operator's request names no session.
--
-- A transaction ends with AND NO CHAIN NO RELEASE: with the variable completion_type a plain COMMIT
-- would begin another, which the next statements would then be in, or close the connection.
--
-- Moments are the server's, in UTC. All strings are binary: a, A and "a " are three names.
SET SESSION sql_mode = 'STRICT_ALL_TABLES'
//
-- schema has a row for each version that was installed. It is made before all others: where it is
-- and has no row, a migration was interrupted, or the tables were emptied; where other tables are
-- without it, it was lost.
CREATE TABLE IF NOT EXISTS {p}schema (
  version INT UNSIGNED NOT NULL,
  PRIMARY KEY (version)
) ENGINE=InnoDB
//
-- seq is the last Seq given out under the name; it is at least the moment of that, in
-- microseconds since 1970. So an idle name may be forgotten: when it comes back, the clock has
-- gone past it. It may also be older than it was, after a restore, say. departures counts the
-- entries that left the queue; see turn. used is the hour, since 1970, in which seq was
-- drawn: what is old is found by an index, and a lock that is taken a thousand times an hour
-- changes that index once.
--
-- state: 0 there is no entry; 1 there is one, which holds, and it is here, in the columns h_*, with
-- seq as its Seq; 2 the entries are in the table entries. So a lock that no other client wants is
-- one UPDATE of this row, from 0 to 1, and its release another, back to 0; neither changes an
-- index. Who wants more locks the row first, and moves the entry to the others (settle). An entry
-- never moves back, so who looks here first, and then among the entries, finds it.
--
-- An entry that is here ends with its session as any other; but no foreign key keeps the session:
-- where there is none any more, there is no entry, whatever state says. What is left of it in the
-- columns means nothing.
CREATE TABLE IF NOT EXISTS {p}names (
  name VARBINARY(512) NOT NULL,
  seq BIGINT UNSIGNED NOT NULL,
  departures BIGINT UNSIGNED NOT NULL DEFAULT 0,
  state TINYINT NOT NULL DEFAULT 0,
  h_id VARBINARY(40) NOT NULL DEFAULT '',
  h_session VARBINARY(40) NOT NULL DEFAULT '',
  h_units INT UNSIGNED NOT NULL DEFAULT 0,
  h_capacity INT UNSIGNED NOT NULL DEFAULT 0,
  h_since BIGINT NOT NULL DEFAULT 0,
  h_edition INT UNSIGNED NOT NULL DEFAULT 0,
  h_owner VARBINARY(2048) NOT NULL DEFAULT '',
  h_value VARBINARY(1024) NOT NULL DEFAULT '',
  used INT UNSIGNED AS (seq DIV 3600000000) STORED,
  PRIMARY KEY (name),
  KEY used (used)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC
//
-- A session lives until expires. A client that finds it dead sets expires to 1970, which is
-- final, and claims the removal of its entries; one that ends its own, to the day after. As long as
-- a claim is younger than a second, no other client looks for more dead ones: five hundred clients
-- at once would take from the locks what they need. grants counts the grants to entries that
-- waited. wakeup is the number of the session's wake-up lock, see listen.
CREATE TABLE IF NOT EXISTS {p}sessions (
  id VARBINARY(40) NOT NULL,
  expires DATETIME(6) NOT NULL,
  claimed DATETIME(6) NULL,
  grants BIGINT UNSIGNED NOT NULL DEFAULT 0,
  wakeup BIGINT UNSIGNED NOT NULL DEFAULT 0,
  PRIMARY KEY (id),
  KEY expires (expires)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC
//
-- granted is NULL while the entry waits, 0 if it has held since it entered, and else the number
-- of the grant, as its session's grants counts them. turn is the value that departures must reach
-- before it can be granted, or less: it says how closely a waiter has to listen, and nothing
-- else. edition makes each publication a change: a row that is overwritten with what it had counts
-- as not found.
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
  UNIQUE KEY id (name, id),
  KEY session (session, granted),
  CONSTRAINT {p}entry_of FOREIGN KEY (session) REFERENCES {p}sessions (id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC
//
-- For the strategy getlock: the entry that held last. It is written while the lock is held and does
-- not say whether it still is. seq is its token, lock_name the name that GET_LOCK was called with.
CREATE TABLE IF NOT EXISTS {p}bound (
  name VARBINARY(512) NOT NULL,
  seq BIGINT UNSIGNED NOT NULL,
  id VARBINARY(40) NOT NULL,
  connection BIGINT UNSIGNED NOT NULL,
  since BIGINT NOT NULL,
  owner VARBINARY(2048) NOT NULL,
  lock_name VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  used INT UNSIGNED AS (seq DIV 3600000000) STORED,
  PRIMARY KEY (name),
  KEY used (used)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC
//
-- evictions has the last eviction of each name, and its reason.
CREATE TABLE IF NOT EXISTS {p}evictions (
  name VARBINARY(512) NOT NULL,
  at DATETIME(6) NOT NULL,
  note VARBINARY(4096) NOT NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC
//
-- store has one row. id is drawn at random when the tables are made and distinguishes them from
-- all others. swept is when a client last began to forget idle names. The others are for getlock's
-- tokens, see acquire: server, origin, base and most say how they follow from UUID_SHORT(), which
-- counts up in the memory of the server with this id, for all its clients; no token is above
-- ceiling.
CREATE TABLE IF NOT EXISTS {p}store (
  one TINYINT NOT NULL,
  id VARBINARY(32) NOT NULL,
  swept DATETIME(6) NOT NULL,
  ceiling BIGINT UNSIGNED NOT NULL DEFAULT 0,
  server BIGINT UNSIGNED NOT NULL DEFAULT 0,
  origin BIGINT UNSIGNED NOT NULL DEFAULT 0,
  base BIGINT UNSIGNED NOT NULL DEFAULT 0,
  most BIGINT UNSIGNED NOT NULL DEFAULT 0,
  PRIMARY KEY (one)
) ENGINE=InnoDB
//
-- store makes that row: also where a program has emptied all tables, as those do that clean up
-- between tests. The ceiling is then lost. A new one is ten seconds above the clock, and so above
-- what the one before it can have given out: the tokens of getlock are ahead of the clock by a
-- block for each connection made lately.
DROP PROCEDURE IF EXISTS {p}store_2
//
CREATE PROCEDURE {p}store_2()
  SQL SECURITY INVOKER
  INSERT IGNORE INTO {p}store (one, id, swept, ceiling)
    VALUES (1, LEFT(SHA2(CONCAT(UUID(), RAND(), CONNECTION_ID()), 256), 32), '1970-01-01', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + 10000000)
//
CALL {p}store_2()
//
-- settle moves the entry that is in the row of a name to the others, so that there is one place to
-- look. The caller has locked the name. An entry without a session is none.
DROP PROCEDURE IF EXISTS {p}settle_2
//
CREATE PROCEDURE {p}settle_2(p_name VARBINARY(512))
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_state TINYINT;
  DECLARE v_moved INT DEFAULT 0;
  SELECT state INTO v_state FROM {p}names WHERE name = p_name FOR UPDATE;
  IF v_state = 1 THEN
    BEGIN
      -- A session that ends at this moment is a missing parent.
      DECLARE CONTINUE HANDLER FOR 1216, 1452 SET v_moved = 0;
      INSERT INTO {p}entries (name, seq, id, session, granted, turn, units, capacity, since, edition, owner, value)
        SELECT n.name, n.seq, n.h_id, n.h_session, 0, 0, n.h_units, n.h_capacity, n.h_since, n.h_edition, n.h_owner, n.h_value
          FROM {p}names n JOIN {p}sessions s ON s.id = n.h_session WHERE n.name = p_name;
      SET v_moved = ROW_COUNT();
    END;
    UPDATE {p}names SET state = IF(v_moved > 0, 2, 0) WHERE name = p_name;
  END IF;
END
//
-- grant lets the first waiters that fit hold, and counts the grants of their sessions. The caller
-- has locked the name. First it finds the last one that fits, then it grants, sessions in the
-- order of their ids: two releases that grant to the same two sessions would otherwise wait for
-- each other. p_waker is the session whose next wake-up lock it is, or NULL: its turn comes in the
-- same order. A server that is read-only grants nothing: see enter.
DROP PROCEDURE IF EXISTS {p}grant_2
//
CREATE PROCEDURE {p}grant_2(p_name VARBINARY(512), p_waker VARBINARY(40))
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_used, v_seq, v_last BIGINT UNSIGNED DEFAULT 0;
  DECLARE v_units, v_capacity BIGINT UNSIGNED;
  DECLARE v_session VARBINARY(40);
  fitting: LOOP
    IF NOT {writable} THEN
      LEAVE fitting;
    END IF;
    SET v_seq = NULL;
    SELECT seq, units, capacity INTO v_seq, v_units, v_capacity FROM {p}entries
      WHERE name = p_name AND granted IS NULL AND seq > v_last ORDER BY seq LIMIT 1;
    IF v_last = 0 THEN -- the holders are ahead of the first waiter
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
  granting: LOOP
    SET v_session = NULL;
    IF v_last > 0 THEN
      SELECT MIN(session) INTO v_session FROM {p}entries WHERE name = p_name AND granted IS NULL AND seq <= v_last;
    END IF;
    IF p_waker <= COALESCE(v_session, p_waker) THEN
      UPDATE {p}sessions SET wakeup = wakeup + 1 WHERE id = p_waker;
      SET p_waker = NULL;
    END IF;
    IF v_session IS NULL THEN
      LEAVE granting;
    END IF;
    UPDATE {p}sessions SET grants = LAST_INSERT_ID(grants + 1) WHERE id = v_session;
    UPDATE {p}entries SET granted = LAST_INSERT_ID()
      WHERE name = p_name AND granted IS NULL AND seq <= v_last AND session = v_session;
  END LOOP;
END
//
-- open makes a session. Its answer, and those of renew and leave, say which run of which server
-- has given them: UUID_SHORT begins with the server's id and the second in which it was started,
-- in MySQL as in MariaDB.
DROP PROCEDURE IF EXISTS {p}open_2
//
CREATE PROCEDURE {p}open_2(p_session VARBINARY(40), p_ttl BIGINT UNSIGNED)
  SQL SECURITY INVOKER
BEGIN
  {demand writable};
  INSERT INTO {p}sessions (id, expires) VALUES (p_session, UTC_TIMESTAMP(6) + INTERVAL p_ttl MICROSECOND);
  SELECT UUID_SHORT() DIV 16777216;
END
//
-- renew extends a living session, and tells what the store has of it: how many entries, and
-- the xor of their Seqs. It locks no row of names and counts no grant.
--
-- A statement's moment is taken when it begins, and then it may wait: for the row, and for a
-- client that has the table or the whole server locked (ALTER TABLE, FLUSH TABLES WITH READ
-- LOCK). So a renewal that its client has given up can come last of several, with the oldest
-- moment: it must not take the expiry back that the client was told of. A session that was
-- declared dead meanwhile is not extended by an old moment, since its expires is 1970.
--
-- Whether it lives is asked with the row locked, and not taken from ROW_COUNT, which is 0 for
-- an expiry that stays what it was.
--
-- Whether the server is read-only is asked after the commit: what was committed before that the new
-- writer has, if it waits for the old one at all. The session is not lost by it: where the server
-- can be written again, or its address is the new writer's, the next renewal counts.
DROP PROCEDURE IF EXISTS {p}renew_2
//
CREATE PROCEDURE {p}renew_2(p_session VARBINARY(40), p_ttl BIGINT UNSIGNED)
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_there BOOLEAN DEFAULT NULL;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK AND NO CHAIN NO RELEASE; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT expires > UTC_TIMESTAMP(6) INTO v_there FROM {p}sessions WHERE id = p_session FOR UPDATE;
  IF v_there THEN
    UPDATE {p}sessions SET expires = GREATEST(expires, UTC_TIMESTAMP(6) + INTERVAL p_ttl MICROSECOND)
      WHERE id = p_session;
  END IF;
  COMMIT AND NO CHAIN NO RELEASE;
  {demand writable};
  SELECT COALESCE(v_there, FALSE), COUNT(*), COALESCE(BIT_XOR(seq), 0),
    EXISTS (SELECT 1 FROM {p}sessions WHERE expires <= UTC_TIMESTAMP(6)
      AND (claimed IS NULL OR claimed <= UTC_TIMESTAMP(6) - INTERVAL 1 SECOND))
      AND NOT EXISTS (SELECT 1 FROM {p}sessions WHERE expires = '1970-01-01' AND claimed > UTC_TIMESTAMP(6) - INTERVAL 1 SECOND),
    NOT EXISTS (SELECT 1 FROM {p}store WHERE ABS(TIMESTAMPDIFF(SECOND, swept, UTC_TIMESTAMP(6))) < 60),
    UUID_SHORT() DIV 16777216, COALESCE((SELECT wakeup FROM {p}sessions WHERE id = p_session), 0)
    FROM {p}entries WHERE session = p_session;
END
//
-- enter makes an entry at the end of its queue, or finds it there. p_mode: 0 waits if it
-- must; 1 tries, and leaves nothing if it would have to wait; 2 asks for an entry that the
-- caller knows to have existed, and so never makes one; 3 and 4 are 0 and 1 for a client that does
-- not know the name: it may be free, and then the client's own UPDATE is made here.
--
-- The row of the name is locked before Seq is drawn, and stays locked until the
-- entry is committed: no entry with a greater Seq can be seen before it. All entries in the queue
-- are ahead. If the last one waits, so does this one, since those ahead of it are ahead of this
-- one; if it holds, all do. If there is none, the entry is made in the row of the name, as clients
-- do by an UPDATE of their own where that row exists.
--
-- Those that enter a queue wait for each other at a lock of GET_LOCK, the gate, and only one of
-- them at the row: a release would wait behind all of them, and each transaction that waits makes
-- the others slower. The gate excludes nothing: who has waited for five seconds goes on without it.
-- If the call is killed, the gate may stay with the connection, which the client closes then. Only
-- a gate that was got is released: a cluster that does not allow GET_LOCK (pxc_strict_mode) does
-- not allow RELEASE_LOCK either.
--
-- A failover sets read_only on the old writer before the new one takes over. A role with SUPER or
-- READ ONLY ADMIN writes there all the same, and both would grant. So nothing is entered, granted or
-- adopted on a server that is read-only, and a renewal does not count; the look comes just before
-- the commit, after all waiting. What an ordinary role is told then, every role is (error 1290).
--
-- said: 0 entered or found, 1 busy, 2 another capacity, 3 no such entry, or the id is another
-- session's, 5 no such session: one that has expired, or was removed, gets nothing any more. stale,
-- of 1 and 2 alone, since who waits looks for the dead in listen: 1 some session is dead and no
-- client removes it; 2 entries of one that is being removed are still in this queue. The last of
-- the answer are whether the entry is in the row of the name, and for one that waits, the wake-up
-- lock of the session in its way, see listen, and how many must leave before it.
DROP PROCEDURE IF EXISTS {p}enter_2
//
CREATE PROCEDURE {p}enter_2(
  p_mode TINYINT, p_name VARBINARY(512), p_id VARBINARY(40), p_session VARBINARY(40),
  p_units INT UNSIGNED, p_capacity INT UNSIGNED, p_since BIGINT, p_owner VARBINARY(2048), p_value VARBINARY(1024))
  SQL SECURITY INVOKER
entering: BEGIN
  DECLARE v_said TINYINT DEFAULT 0;
  DECLARE v_now, v_seq, v_granted, v_used, v_last, v_turn, v_departures, v_number BIGINT UNSIGNED DEFAULT NULL;
  DECLARE v_capacity, v_units INT UNSIGNED;
  DECLARE v_stale, v_state TINYINT DEFAULT 0;
  DECLARE v_row BOOLEAN DEFAULT FALSE;
  DECLARE v_found, v_of, v_session VARBINARY(40);
  DECLARE v_holder VARBINARY(2048);
  DECLARE v_wakeup VARBINARY(64);
  DECLARE v_gate VARCHAR(64) CHARACTER SET ascii DEFAULT CONCAT('hasp:gate:', SHA1(CONCAT(DATABASE(), '.{p}', p_name)));
  DECLARE v_got INT DEFAULT 0;
  -- A duplicate id is an entry whose making was not answered, or another session's; a missing parent is a session
  -- that ended.
  DECLARE CONTINUE HANDLER FOR 1062 SET v_said = 4;
  DECLARE CONTINUE HANDLER FOR 1216, 1452 SET v_said = 5;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
    ROLLBACK AND NO CHAIN NO RELEASE;
    IF v_got = 1 THEN
      DO RELEASE_LOCK(v_gate);
    END IF;
    RESIGNAL;
  END;
  IF p_mode <> 2 THEN
    BEGIN
      DECLARE CONTINUE HANDLER FOR SQLEXCEPTION SET v_got = 0; -- a cluster may not allow it
      SET v_got = GET_LOCK(v_gate, 5);
    END;
  END IF;
  IF p_mode >= 3 THEN
    SET p_mode = p_mode - 3, v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    UPDATE {p}names SET seq = LAST_INSERT_ID(GREATEST(seq + 1, v_now)), state = 1, h_id = p_id, h_session = p_session, h_units = p_units,
      h_capacity = p_capacity, h_since = p_since, h_edition = 0, h_owner = p_owner, h_value = p_value WHERE name = p_name AND state = 0 AND {writable}
        AND EXISTS (SELECT 1 FROM {p}sessions WHERE id = p_session AND expires > UTC_TIMESTAMP(6));
    IF ROW_COUNT() > 0 THEN
      IF v_got = 1 THEN
        DO RELEASE_LOCK(v_gate);
      END IF;
      SELECT 0, LAST_INSERT_ID(), TRUE, NULL, 0, NULL, TRUE, NULL, 0;
      LEAVE entering;
    END IF;
  END IF;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  IF p_mode = 2 THEN
    SELECT state INTO v_state FROM {p}names WHERE name = p_name FOR UPDATE;
    IF v_state = 2 THEN
      CALL {p}grant_2(p_name, NULL);
    END IF;
    COMMIT AND NO CHAIN NO RELEASE;
    SET v_said = 4;
  ELSE
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    UPDATE {p}names SET seq = LAST_INSERT_ID(GREATEST(seq + 1, v_now)) WHERE name = p_name AND state = 2;
    IF ROW_COUNT() > 0 THEN
      SET v_seq = LAST_INSERT_ID();
    ELSE -- and another may have changed it since
      SELECT state, h_id, h_session, h_units, h_capacity INTO v_state, v_found, v_of, v_units, v_capacity FROM {p}names WHERE name = p_name FOR UPDATE;
      IF v_found IS NULL THEN
        INSERT INTO {p}names (name, seq) VALUES (p_name, v_now) ON DUPLICATE KEY UPDATE seq = seq; -- which locks it
        SELECT state, h_id, h_session, h_units, h_capacity INTO v_state, v_found, v_of, v_units, v_capacity FROM {p}names WHERE name = p_name FOR UPDATE;
      END IF;
      IF v_state = 1 AND v_found = p_id AND v_of = p_session THEN
        SET v_said = 4;
      ELSEIF v_state = 1 AND (v_capacity <> p_capacity OR p_mode = 1 AND v_units + p_units > p_capacity)
          AND EXISTS (SELECT 1 FROM {p}names n JOIN {p}sessions s ON s.id = n.h_session WHERE n.name = p_name) THEN
        SET v_said = IF(v_capacity <> p_capacity, 2, 1);
      ELSE
        IF v_state = 1 THEN
          CALL {p}settle_2(p_name);
        END IF;
        UPDATE {p}names SET seq = LAST_INSERT_ID(GREATEST(seq + 1, v_now)) WHERE name = p_name;
        SET v_seq = LAST_INSERT_ID(), v_capacity = NULL;
      END IF;
    END IF;
    IF v_said = 0 THEN
      SELECT e.seq, e.granted, e.capacity, e.units, e.turn, n.departures, e.session, (SELECT wakeup FROM {p}sessions WHERE id = e.session)
        INTO v_last, v_granted, v_capacity, v_units, v_turn, v_departures, v_session, v_number
        FROM {p}names n JOIN {p}entries e ON e.name = n.name WHERE n.name = p_name ORDER BY e.seq DESC LIMIT 1;
      IF v_last IS NULL THEN
        SET v_granted = 0;
      ELSEIF v_capacity <> p_capacity THEN
        SET v_said = 2;
      ELSEIF v_granted IS NOT NULL THEN
        SELECT SUM(units) INTO v_used FROM {p}entries WHERE name = p_name;
        SET v_granted = IF(v_used + p_units > p_capacity, NULL, 0), v_turn = 0;
      END IF;
      IF v_said = 0 AND v_granted IS NULL THEN
        IF p_mode = 1 THEN
          SET v_said = 1;
        ELSE
          -- One more must leave, unless the two could be granted together.
          SET v_turn = GREATEST(v_turn, v_departures) + IF(p_units = p_capacity OR v_units = v_capacity, 1, 0);
          IF v_units + p_units > p_capacity THEN -- the last one is in the way
            SET v_wakeup = CONCAT('hasp:wakeup:', v_session, ':', v_number);
          END IF;
        END IF;
      END IF;
      IF v_said = 0 AND NOT EXISTS (SELECT 1 FROM {p}sessions WHERE id = p_session AND expires > UTC_TIMESTAMP(6)) THEN
        SET v_said = 5;
      ELSEIF v_said = 0 AND v_last IS NOT NULL THEN
        INSERT INTO {p}entries (name, seq, id, session, granted, turn, units, capacity, since, owner, value)
          VALUES (p_name, v_seq, p_id, p_session, v_granted, v_turn, p_units, p_capacity, p_since, p_owner, p_value);
      ELSEIF v_said = 0 THEN
        SET v_row = TRUE;
        UPDATE {p}names SET state = 1, h_id = p_id, h_session = p_session, h_units = p_units, h_capacity = p_capacity,
          h_since = p_since, h_edition = 0, h_owner = p_owner, h_value = p_value WHERE name = p_name;
      END IF;
    END IF;
    IF v_said = 0 THEN
      {demand writable};
    END IF;
    -- The next one may come to the row now: it is free before this commit is on the disk.
    IF v_got = 1 THEN
      DO RELEASE_LOCK(v_gate);
    END IF;
    IF v_said = 0 THEN
      COMMIT AND NO CHAIN NO RELEASE;
    ELSE
      ROLLBACK AND NO CHAIN NO RELEASE;
    END IF;
  END IF;
  IF v_said NOT IN (0, 3, 5) THEN
    -- Perhaps the entry that was found is our own, made by a request whose answer was lost. It is
    -- looked for in the order in which it moves. The last of the queue is then not the one in its way.
    SET v_seq = NULL, v_wakeup = NULL;
    SELECT n.seq, 0, TRUE INTO v_seq, v_granted, v_row FROM {p}names n JOIN {p}sessions s ON s.id = n.h_session
      WHERE n.name = p_name AND n.state = 1 AND n.h_id = p_id AND n.h_session = p_session;
    IF v_seq IS NULL THEN
      SELECT seq, granted INTO v_seq, v_granted FROM {p}entries WHERE name = p_name AND id = p_id AND session = p_session;
    END IF;
    IF v_seq IS NOT NULL THEN
      SET v_said = 0;
    ELSEIF v_said = 4 THEN
      SET v_said = 3;
    ELSE
      SELECT h_owner INTO v_holder FROM {p}names WHERE name = p_name AND state = 1;
      IF v_holder IS NULL THEN
        SELECT owner INTO v_holder FROM {p}entries WHERE name = p_name ORDER BY seq LIMIT 1;
      END IF;
    END IF;
  END IF;
  IF v_said IN (1, 2) THEN
    SELECT EXISTS (SELECT 1 FROM {p}sessions WHERE expires <= UTC_TIMESTAMP(6)
      AND (claimed IS NULL OR claimed <= UTC_TIMESTAMP(6) - INTERVAL 1 SECOND))
      AND NOT EXISTS (SELECT 1 FROM {p}sessions WHERE expires = '1970-01-01' AND claimed > UTC_TIMESTAMP(6) - INTERVAL 1 SECOND) INTO v_stale;
  END IF;
  -- Beginning with the dead sessions, which are few, and not with the queue, which may be long.
  IF v_said IN (1, 2) AND NOT v_stale AND (EXISTS (SELECT STRAIGHT_JOIN 1 FROM {p}sessions s JOIN {p}entries e ON e.session = s.id
      WHERE s.expires <= UTC_TIMESTAMP(6) AND e.name = p_name)
    OR EXISTS (SELECT 1 FROM {p}names n JOIN {p}sessions s ON s.id = n.h_session
      WHERE n.name = p_name AND n.state = 1 AND s.expires <= UTC_TIMESTAMP(6))) THEN
    SET v_stale = 2;
  END IF;
  SELECT v_said, v_seq, v_granted IS NOT NULL, v_capacity, v_stale, v_holder, v_row, v_wakeup, IF(v_wakeup IS NULL, 0, v_turn - v_departures);
END
//
-- claim declares up to sixteen sessions dead that have expired, and answers with their ids: the
-- caller is to remove them. A claim that is older than a second counts as none: its client has died
-- as well, or can do with help. p_first is FALSE if the caller removes others already; else nothing
-- is claimed beside another client that does, or is just about to.
--
-- The moment is compared under the row's lock, with what a renewal has just committed.
DROP PROCEDURE IF EXISTS {p}claim_2
//
CREATE PROCEDURE {p}claim_2(p_first BOOLEAN)
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_gate VARCHAR(64) CHARACTER SET ascii DEFAULT CONCAT('hasp:claim:', SHA1(CONCAT(DATABASE(), '.{p}')));
  DECLARE v_got, v_n INT DEFAULT 0;
  DECLARE v_id VARBINARY(40);
  DECLARE v_ids VARBINARY(700) DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
    IF v_got = 1 THEN
      DO RELEASE_LOCK(v_gate);
    END IF;
    RESIGNAL;
  END;
  BEGIN
    DECLARE CONTINUE HANDLER FOR SQLEXCEPTION SET v_got = 2; -- a cluster may not allow it
    SET v_got = GET_LOCK(v_gate, 0);
  END;
  IF v_got > 0 AND NOT (p_first AND EXISTS (SELECT 1 FROM {p}sessions WHERE expires = '1970-01-01' AND claimed > UTC_TIMESTAMP(6) - INTERVAL 1 SECOND)) THEN
    claiming: WHILE v_n < 16 DO
      SET v_id = NULL, v_n = v_n + 1;
      SELECT id INTO v_id FROM {p}sessions WHERE expires <= UTC_TIMESTAMP(6)
        AND (claimed IS NULL OR claimed <= UTC_TIMESTAMP(6) - INTERVAL 1 SECOND) ORDER BY expires LIMIT 1;
      IF v_id IS NULL THEN
        LEAVE claiming;
      END IF;
      UPDATE {p}sessions SET expires = '1970-01-01', claimed = UTC_TIMESTAMP(6) WHERE id = v_id AND expires <= UTC_TIMESTAMP(6)
        AND (claimed IS NULL OR claimed <= UTC_TIMESTAMP(6) - INTERVAL 1 SECOND);
      IF ROW_COUNT() > 0 THEN
        SET v_ids = CONCAT(v_ids, v_id, ' ');
      END IF;
    END WHILE;
  END IF;
  IF v_got = 1 THEN
    DO RELEASE_LOCK(v_gate);
  END IF;
  SELECT v_ids;
END
//
-- leave removes an entry and lets the next hold, in one step. The name is locked even if
-- nothing of it changes: two that leave at the same moment would each still see the other,
-- and the one that waits for both would be granted by neither. The statement that locks it tells
-- what its state was (LAST_INSERT_ID), or 3 for an entry of the row, behind which none waits.
--
-- p_of is the session of the entry, NULL if an operator removes it, of any. p_waker is the same
-- session if it is its own client that asks, which can release its wake-up lock; else NULL. It is
-- released if another session waits: the answer has the number of the wake-up lock that is next, or
-- NULL. If the client asks on the connection that has the wake-up locks, p_low is the lowest of
-- them, and it is released here, after the commit; what others have counted up since it releases
-- when it has this answer. Else p_low is NULL. Of one grant the answer has the id and the Seq, for
-- a client that grants to itself.
--
-- In the usual case the first of the queue waits, needs all, and is another session's: it holds
-- now, by two statements, where grant looks for all that fit.
DROP PROCEDURE IF EXISTS {p}leave_2
//
CREATE PROCEDURE {p}leave_2(p_name VARBINARY(512), p_id VARBINARY(40), p_of VARBINARY(40), p_waker VARBINARY(40), p_low BIGINT UNSIGNED)
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_there INT DEFAULT 0;
  DECLARE v_was, v_granted, v_next BIGINT UNSIGNED;
  DECLARE v_id, v_session, v_mine VARBINARY(40);
  DECLARE v_usual, v_others BOOLEAN DEFAULT FALSE;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK AND NO CHAIN NO RELEASE; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SET v_was = LAST_INSERT_ID(0); -- there may be no such name
  UPDATE {p}names SET departures = departures + (LAST_INSERT_ID(IF(state = 1 AND h_id = p_id AND h_session = COALESCE(p_of, h_session), 3, state)) = 2),
      state = IF(state = 1 AND h_id = p_id AND h_session = COALESCE(p_of, h_session), 0, state) WHERE name = p_name;
  SET v_was = LAST_INSERT_ID();
  IF v_was = 3 THEN
    SELECT COUNT(*) INTO v_there FROM {p}names n JOIN {p}sessions s ON s.id = n.h_session WHERE n.name = p_name;
  ELSEIF v_was = 2 THEN
    DELETE FROM {p}entries WHERE id = p_id AND name = p_name AND session = COALESCE(p_of, session);
    SET v_there = ROW_COUNT();
  END IF;
  IF v_there > 0 AND v_was = 2 THEN
    SELECT id, seq, session, granted IS NULL AND units = capacity AND session <> p_waker INTO v_id, v_next, v_session, v_usual
      FROM {p}entries WHERE name = p_name ORDER BY seq LIMIT 1;
    IF v_id IS NULL THEN
      UPDATE {p}names SET state = 0 WHERE name = p_name;
    ELSEIF v_usual AND {writable} THEN
      UPDATE {p}sessions SET wakeup = wakeup + (id = p_waker), grants = IF(id = p_waker, grants, LAST_INSERT_ID(grants + 1))
        WHERE id IN (v_session, p_waker) ORDER BY id;
      UPDATE {p}entries SET granted = LAST_INSERT_ID() WHERE name = p_name AND seq = v_next;
      SET v_others = TRUE;
    ELSE
      SELECT granted, session INTO v_granted, v_session FROM {p}entries WHERE name = p_name ORDER BY seq DESC LIMIT 1;
      IF v_granted IS NULL THEN
        IF p_waker IS NOT NULL THEN
          SELECT id, seq INTO v_id, v_next FROM {p}entries WHERE name = p_name AND granted IS NULL ORDER BY seq LIMIT 1;
          SET v_others = v_session <> p_waker
            OR EXISTS (SELECT 1 FROM {p}entries WHERE name = p_name AND granted IS NULL AND session <> p_waker);
        END IF;
        CALL {p}grant_2(p_name, IF(v_others, p_waker, NULL));
        SELECT id INTO v_mine FROM {p}entries WHERE id = v_id AND name = p_name AND session = p_waker AND granted IS NOT NULL;
      END IF;
    END IF;
  END IF;
  IF v_was = 2 AND v_there = 0 THEN
    ROLLBACK AND NO CHAIN NO RELEASE; -- nothing has departed
  ELSE
    COMMIT AND NO CHAIN NO RELEASE;
  END IF;
  -- If there was no entry, it may have been removed by a request whose answer was lost.
  IF v_others AND p_low IS NOT NULL THEN
    DO RELEASE_LOCK(CONCAT('hasp:wakeup:', p_waker, ':', p_low));
  END IF;
  SELECT v_there, UUID_SHORT() DIV 16777216, IF(v_others OR v_there = 0, (SELECT wakeup FROM {p}sessions WHERE id = p_waker), NULL), v_mine, v_next;
END
//
-- evict is leave for an operator, and records it in the same step. Records that are older than
-- p_retention are removed by the next eviction of any name; the row of names is locked before any
-- of evictions, as before any other.
DROP PROCEDURE IF EXISTS {p}evict_2
//
CREATE PROCEDURE {p}evict_2(p_name VARBINARY(512), p_id VARBINARY(40), p_note VARBINARY(4096), p_retention BIGINT UNSIGNED)
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_there INT DEFAULT 0;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK AND NO CHAIN NO RELEASE; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  CALL {p}settle_2(p_name); -- which locks the name
  DELETE FROM {p}entries WHERE id = p_id AND name = p_name;
  SET v_there = ROW_COUNT();
  IF v_there > 0 THEN
    UPDATE {p}names SET departures = departures + 1,
        state = IF(EXISTS (SELECT 1 FROM {p}entries WHERE name = p_name), state, 0) WHERE name = p_name;
    CALL {p}grant_2(p_name, NULL);
    REPLACE INTO {p}evictions (name, at, note) VALUES (p_name, UTC_TIMESTAMP(6), p_note);
  END IF;
  COMMIT AND NO CHAIN NO RELEASE;
  DELETE FROM {p}evictions WHERE at < UTC_TIMESTAMP(6) - INTERVAL p_retention MICROSECOND LIMIT 100;
  SELECT v_there;
END
//
-- downgrade makes an entry that holds smaller, in place, and lets the waiters hold that fit in
-- beside it, in one step; where the entry waits, it says that there is none. It never makes an entry
-- larger, so that a request that is repeated or late changes nothing. departures stays: no entry has
-- left, and a waiter that is granted now has waited for one departure and so listens as closely as
-- any.
DROP PROCEDURE IF EXISTS {p}downgrade_2
//
CREATE PROCEDURE {p}downgrade_2(p_name VARBINARY(512), p_id VARBINARY(40), p_units INT UNSIGNED, p_waker VARBINARY(40))
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_seq, v_wakeup BIGINT UNSIGNED;
  DECLARE v_units INT UNSIGNED;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK AND NO CHAIN NO RELEASE; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT seq INTO v_seq FROM {p}names WHERE name = p_name FOR UPDATE;
  SELECT n.h_units INTO v_units FROM {p}names n JOIN {p}sessions s ON s.id = n.h_session
    WHERE n.name = p_name AND n.state = 1 AND n.h_id = p_id AND n.h_session = p_waker;
  IF v_units IS NOT NULL THEN -- none waits behind it
    UPDATE {p}names SET h_units = LEAST(h_units, p_units) WHERE name = p_name;
    SET v_units = 0;
  ELSE
    SELECT units INTO v_units FROM {p}entries WHERE id = p_id AND name = p_name AND session = p_waker AND granted IS NOT NULL;
  END IF;
  IF v_units > p_units THEN
    UPDATE {p}entries SET units = p_units WHERE id = p_id AND name = p_name AND session = p_waker;
    CALL {p}grant_2(p_name, p_waker);
  END IF;
  COMMIT AND NO CHAIN NO RELEASE;
  SELECT wakeup INTO v_wakeup FROM {p}sessions WHERE id = p_waker;
  SELECT v_units IS NOT NULL, v_wakeup;
END
//
-- adopt gives another session's entry that holds the id, the session and the owner of this one,
-- in place. Under the name's lock no entry is granted, and none is removed: a session that dies at
-- this moment removes its entries one by one, each under its name's lock and by its id, which has
-- changed then. A second client that asks with the same old id finds none; the same client that
-- asks again finds its own. For those that watch it is a change like a publication; ours are
-- counted on from there.
--
-- said: 0 it is ours and holds, 3 no such entry, or it waits, also where it is ours, or it differs
-- from what its new owner expects, or another has our id, 5 our session has ended.
DROP PROCEDURE IF EXISTS {p}adopt_2
//
CREATE PROCEDURE {p}adopt_2(
  p_name VARBINARY(512), p_old VARBINARY(40), p_seq BIGINT UNSIGNED, p_id VARBINARY(40), p_session VARBINARY(40),
  p_units INT UNSIGNED, p_capacity INT UNSIGNED, p_since BIGINT, p_owner VARBINARY(2048))
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_said TINYINT DEFAULT 0;
  DECLARE v_seq, v_found BIGINT UNSIGNED;
  DECLARE v_edition INT UNSIGNED DEFAULT 0;
  DECLARE CONTINUE HANDLER FOR 1062 SET v_said = 3;
  DECLARE CONTINUE HANDLER FOR 1216, 1452 SET v_said = 5;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK AND NO CHAIN NO RELEASE; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT seq INTO v_seq FROM {p}names WHERE name = p_name FOR UPDATE;
  CALL {p}settle_2(p_name);
  SELECT seq INTO v_found FROM {p}entries WHERE id = p_id AND name = p_name AND seq = p_seq AND session = p_session AND granted IS NOT NULL;
  IF v_found IS NULL THEN
    -- Read and not locked: a client that removes that session waits for the name.
    SELECT e.seq INTO v_found FROM {p}entries e JOIN {p}sessions s ON s.id = e.session
      WHERE e.id = p_old AND e.name = p_name AND e.seq = p_seq AND e.granted IS NOT NULL
        AND e.units = p_units AND e.capacity = p_capacity AND s.expires > UTC_TIMESTAMP(6);
    IF v_found IS NULL THEN
      SET v_said = 3;
    ELSE
      -- 0 as of an entry that held when it entered: our session's grants do not count it.
      UPDATE {p}entries SET id = p_id, session = p_session, granted = 0, since = p_since, owner = p_owner, edition = edition + 1
        WHERE id = p_old AND name = p_name;
    END IF;
  END IF;
  SELECT edition INTO v_edition FROM {p}entries WHERE id = p_id AND name = p_name AND session = p_session;
  {demand writable};
  COMMIT AND NO CHAIN NO RELEASE;
  SELECT v_said, v_edition;
END
//
-- listen returns when the session has had more than p_grants grants, when some session is to be
-- removed, when nothing of the session waits, or after p_limit microseconds. There is one call for
-- a client, however many of its entries wait.
--
-- It waits at the wake-up lock of the session that is in the way of all its entries. A wake-up lock
-- is a lock of GET_LOCK, which has the number in the row of that session; its client has it before
-- the number can be seen. A departure that concerns others counts the number up in the same
-- transaction; then the client releases the wake-up lock with the old number, and never takes that
-- one again. So who reads a number and that it was not granted anything, both by one statement,
-- waits for a wake-up lock that is released after the next departure, or has been already: no grant
-- is missed. When the client dies, the server frees its wake-up locks. A wake-up lock that is free
-- although its number has not changed belongs to a client that is just making a new connection; it
-- is waited for in pauses.
--
-- enter has told a client the wake-up lock of the session in its entry's way. It has read the
-- number with the name locked, so that departure was still to come. Where it is the only entry that
-- waits, p_wakeup is that wake-up lock, for p_first microseconds: when it is released, most likely
-- the entry holds, and nothing was read while it waited. If not, the client calls again.
--
-- In the way of an entry is the nearest one ahead beside which it cannot hold: without that one's
-- departure it is not granted. Where there is none (small shares of a semaphore), where they are of
-- several sessions, or without p_wakeups, it polls: a number in one row.
--
-- How often it polls follows from what can have happened. If r others must hold before us,
-- r hand-overs must come first, none of which takes less than a millisecond; if they are seen
-- to take longer, half of that is waited for each, but no more than 5 ms: all of them may give
-- up at once. A delay of a thirtieth of the time in which nothing has moved goes unnoticed
-- (p_still, p_rank: from one call to the next; p_rank is the rank times 100 and the number of
-- waiters). And many waiters of one client take longer to read. A server that is short of
-- processors makes each poll slow, and is then polled less, least by those that are far behind:
-- otherwise the polls would take from the hand-overs what they need to get on. The next waiter
-- must not wait for long because of that, since all the others wait for it.
DROP PROCEDURE IF EXISTS {p}listen_2
//
CREATE PROCEDURE {p}listen_2(
  p_session VARBINARY(40), p_grants BIGINT UNSIGNED, p_rank INT, p_still BIGINT, p_limit BIGINT, p_wakeups BOOLEAN,
  p_wakeup VARCHAR(64) CHARACTER SET ascii, p_first BIGINT)
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_began DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
  DECLARE v_elapsed, v_moved, v_poll, v_pace, v_left, v_pause BIGINT DEFAULT 0;
  DECLARE v_grants, v_number BIGINT UNSIGNED;
  DECLARE v_waiting, v_rank, v_before, v_blocked, v_got INT;
  DECLARE v_stale BOOLEAN;
  DECLARE v_first, v_last VARBINARY(40);
  DECLARE v_wakeup, v_free VARCHAR(64) CHARACTER SET ascii DEFAULT '';
  SET v_before = p_rank, v_moved = IF(p_rank < 0, 0, -p_still);
  listening: LOOP
    IF p_wakeup IS NOT NULL THEN
      SET v_wakeup = p_wakeup, p_wakeup = NULL;
      SET v_got = GET_LOCK(v_wakeup, IF(VERSION() LIKE '%MariaDB%', p_first / 1000000, CEILING(p_first / 1000000)));
      IF v_got = 1 THEN
        DO RELEASE_LOCK(v_wakeup);
        LEAVE listening;
      END IF;
    END IF;
    SET v_grants = NULL;
    IF v_got = 1 AND v_pause = 0 THEN -- a wake-up lock has just been released: most likely we hold
      SELECT grants INTO v_grants FROM {p}sessions WHERE id = p_session;
    ELSE
      SELECT grants, EXISTS (SELECT 1 FROM {p}sessions WHERE expires <= UTC_TIMESTAMP(6)
          AND (claimed IS NULL OR claimed <= UTC_TIMESTAMP(6) - INTERVAL 1 SECOND))
          AND NOT EXISTS (SELECT 1 FROM {p}sessions WHERE expires = '1970-01-01' AND claimed > UTC_TIMESTAMP(6) - INTERVAL 1 SECOND)
        INTO v_grants, v_stale FROM {p}sessions WHERE id = p_session;
    END IF;
    SET v_elapsed = TIMESTAMPDIFF(MICROSECOND, v_began, UTC_TIMESTAMP(6));
    IF v_grants IS NULL OR v_grants > p_grants OR v_stale OR v_elapsed >= p_limit THEN
      LEAVE listening;
    END IF;
    IF p_wakeups THEN
      SELECT COUNT(*), COUNT(b.id), MIN(b.id), MAX(b.id), MAX(b.wakeup), MIN(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), b.expires)), MAX(s.grants), MIN(w.place)
        INTO v_waiting, v_blocked, v_first, v_last, v_number, v_left, v_grants, v_rank
        FROM (SELECT (SELECT a.session FROM {p}entries a WHERE a.name = e.name AND a.seq < e.seq AND a.units + e.units > e.capacity
            ORDER BY a.seq DESC LIMIT 1) AS ahead,
            (SELECT CAST(e.turn AS SIGNED) - CAST(n.departures AS SIGNED) FROM {p}names n WHERE n.name = e.name) AS place
          FROM {p}entries e WHERE e.session = p_session AND e.granted IS NULL LIMIT 257) w
        JOIN {p}sessions s ON s.id = p_session LEFT JOIN {p}sessions b ON b.id = w.ahead;
      IF v_waiting = 0 THEN
        LEAVE listening;
      END IF;
      IF v_grants > p_grants THEN
        ITERATE listening;
      END IF;
      IF v_waiting = v_blocked AND v_waiting < 257 AND v_first = v_last THEN
        SET v_wakeup = CONCAT('hasp:wakeup:', v_first, ':', v_number);
        IF v_wakeup = v_free THEN
          SET v_pause = LEAST(200000, GREATEST(1000, 2 * v_pause));
          DO SLEEP(v_pause * (0.5 + RAND() / 2) / 1000000);
        ELSE
          SET v_pause = 0;
        END IF;
        -- Until that session must have been renewed; and a second at most, for a departure whose wake-up lock
        -- no client releases: an entry that an operator removed, say. Those far behind have more time, and
        -- hundreds of them would take from the hand-overs what they need. MySQL counts in whole seconds.
        SET v_left = LEAST(p_limit - v_elapsed, GREATEST(v_left, 20000), (750000 + FLOOR(RAND() * 500000)) * GREATEST(1, LEAST(v_rank, 10000) DIV 32));
        SET v_got = GET_LOCK(v_wakeup, IF(VERSION() LIKE '%MariaDB%', v_left / 1000000, CEILING(v_left / 1000000)));
        IF v_got = 1 THEN
          DO RELEASE_LOCK(v_wakeup);
          SET v_free = v_wakeup;
        ELSE
          SET v_free = '';
        END IF;
        ITERATE listening;
      END IF;
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
    SET v_poll = TIMESTAMPDIFF(MICROSECOND, v_began, UTC_TIMESTAMP(6)) - v_elapsed;
    DO SLEEP(LEAST(1000000, GREATEST(LEAST(10, 3 + v_rank) * v_poll,
      400 + v_rank * LEAST(5000, GREATEST(1000, v_pace DIV 2)) + 50 * v_waiting
        + LEAST(100000, (v_elapsed - v_moved) DIV 30))) / 1000000);
  END LOOP;
  SELECT s.grants, COALESCE(v_stale, FALSE), v_before, v_elapsed - v_moved, e.id, e.seq
    FROM {p}sessions s LEFT JOIN {p}entries e ON e.session = s.id AND e.granted > p_grants
    WHERE s.id = p_session;
END
//
-- acquire asks for a lock of GET_LOCK, and answers with what makes its token (token.go). If the
-- lock is taken, and p_wait is not 0, a first answer says so, at once, and the other comes when the
-- lock is granted or p_wait seconds are over. Clients have a SELECT for a lock that is free.
--
-- The token is base + (UUID_SHORT() - origin), up to most. Nothing is written for it. If it cannot
-- be told, the client asks for it by raise; it has the lock. The tokens of a name grow with its
-- grants:
--
-- Two holders that read the same base draw from a counter that never goes back while the server
-- runs, the later one after the earlier has given its lock back. They read with the lock held, so
-- that the later one reads the same base or a greater one; and a greater base is above the most of
-- those before it.
--
-- When the server is started anew, UUID_SHORT() begins somewhere else, and perhaps, with a clock
-- that was set back, where it was before. So a connection trusts no base but one that was written
-- in its own time, which is of this run of the server: one greater than it has seen first (the
-- variable of the session). A base is always above the ceiling before it, and that is on the disk
-- before its numbers can be read.
--
-- A replica finds its master's id. Once promoted it begins above the ceiling that it knows; and one
-- that is not, or not any more, is read-only and grants nothing.
--
-- A base is at least the server's clock, and one that has fallen ten seconds behind is given up: so
-- the tokens grow also where the ceiling was lost, over the restore of a backup or with a replica
-- that had not received it, unless the clock was set back as well.
--
-- What fails here leaves the lock with the connection, which the client then closes.
DROP PROCEDURE IF EXISTS {p}acquire_2
//
CREATE PROCEDURE {p}acquire_2(p_lock VARCHAR(64) CHARACTER SET ascii, p_wait INT)
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_got INT DEFAULT GET_LOCK(p_lock, 0);
  IF v_got = 0 AND p_wait > 0 THEN
    SELECT '0', CONNECTION_ID();
    SET v_got = GET_LOCK(p_lock, p_wait);
  END IF;
  SELECT ELT(v_got + 1, '0', {token}), CONNECTION_ID();
END
//
-- raise reserves the next 1,024 tokens, or four times as many as the last time, up to 262,144, if
-- those have been used up, and answers with the first of them; or with the next token, if another
-- client has just raised. A token is a microsecond of the clock: each new connection begins a
-- block, and with large ones tokens would be minutes ahead of the clock when hundreds connect, and
-- go back where the ceiling is lost then. The caller has a lock, and goes on to have it: so
-- whatever token was given to a holder before it is at most the ceiling that is found here.
--
-- There are two commits, since another client may read what the disk does not have yet. If this
-- call is killed between them, these numbers are left out. If two raise one after the other, and
-- come to their second commits in the other order, the greater stays.
DROP PROCEDURE IF EXISTS {p}raise_2
//
CREATE PROCEDURE {p}raise_2()
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_ceiling, v_server, v_origin, v_base, v_most, v_count, v_token BIGINT UNSIGNED;
  DECLARE v_now BIGINT;
  DECLARE v_more BIGINT UNSIGNED;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK AND NO CHAIN NO RELEASE; RESIGNAL; END;
  IF @{p}seen IS NULL THEN
    SELECT base INTO @{p}seen FROM {p}store WHERE one = 1;
  END IF;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT ceiling, server, origin, base, most INTO v_ceiling, v_server, v_origin, v_base, v_most FROM {p}store WHERE one = 1 FOR UPDATE;
  IF v_ceiling IS NULL THEN -- the table was emptied
    CALL {p}store_2();
    SET @{p}seen = COALESCE(@{p}seen, 0);
    SELECT ceiling, server, origin, base, most INTO v_ceiling, v_server, v_origin, v_base, v_most FROM {p}store WHERE one = 1 FOR UPDATE;
  END IF;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), v_count = UUID_SHORT();
  IF v_server = @@server_id AND v_base > @{p}seen AND v_count BETWEEN v_origin AND v_origin + (v_most - v_base) THEN
    SET v_token = v_base + (v_count - v_origin);
  END IF;
  IF v_token + 10000000 >= v_now THEN
    UPDATE {p}store SET ceiling = ceiling WHERE one = 1; -- which a server that is read-only refuses
    COMMIT AND NO CHAIN NO RELEASE;
  ELSE
    SET v_more = LEAST(262143, IF(v_count > v_origin + (v_most - v_base), GREATEST(1023, 4 * (v_most - v_base) + 3), 1023));
    SET v_token = GREATEST(v_ceiling + 1, v_now), v_server = @@server_id;
    UPDATE {p}store SET ceiling = v_token + v_more WHERE one = 1;
    COMMIT AND NO CHAIN NO RELEASE;
    SET v_count = UUID_SHORT();
    UPDATE {p}store SET server = v_server, origin = v_count, base = v_token, most = v_token + v_more WHERE one = 1 AND base < v_token;
  END IF;
  SELECT v_token;
END
//
-- note records the entry that holds a lock of GET_LOCK, for those who ask for the holder. One that
-- arrives late replaces none with a greater token.
DROP PROCEDURE IF EXISTS {p}note_2
//
CREATE PROCEDURE {p}note_2(
  p_name VARBINARY(512), p_seq BIGINT UNSIGNED, p_id VARBINARY(40), p_connection BIGINT UNSIGNED, p_since BIGINT,
  p_owner VARBINARY(2048), p_lock VARCHAR(64) CHARACTER SET ascii)
  SQL SECURITY INVOKER
BEGIN
  INSERT INTO {p}bound (name, seq, id, connection, since, owner, lock_name)
    VALUES (p_name, p_seq, p_id, p_connection, p_since, p_owner, p_lock)
    ON DUPLICATE KEY UPDATE id = IF(seq < p_seq, p_id, id), connection = IF(seq < p_seq, p_connection, connection),
      since = IF(seq < p_seq, p_since, since), owner = IF(seq < p_seq, p_owner, owner),
      lock_name = IF(seq < p_seq, p_lock, lock_name), seq = GREATEST(seq, p_seq);
END
//
-- sweep forgets what was idle for p_retention: names, and what is in bound. One client does it
-- for all of a database, once in a minute; where more is left than is taken at a time, a client
-- that comes a second later goes on.
--
-- A token grows over that: it is at least the server's clock, which is past every Seq that is
-- forgotten. What is in use stays, however old: a name with entries, a lock that is held.
--
-- It is the only one to lock several names, and so it waits for none of them: a row that is locked
-- is in use. A client that comes for one that it has locked waits until it is gone, and makes a
-- new one.
DROP PROCEDURE IF EXISTS {p}sweep_2
//
CREATE PROCEDURE {p}sweep_2(p_retention BIGINT UNSIGNED)
  SQL SECURITY INVOKER
sweeping: BEGIN
  DECLARE v_now BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  DECLARE v_old BIGINT DEFAULT (v_now - p_retention) DIV 3600000000;
  DECLARE v_name, v_found VARBINARY(512);
  DECLARE v_done BOOLEAN DEFAULT FALSE;
  DECLARE v_swept INT DEFAULT 0;
  DECLARE c_names CURSOR FOR SELECT n.name FROM {p}names n
    WHERE n.used < v_old AND NOT EXISTS (SELECT 1 FROM {p}entries e WHERE e.name = n.name)
      AND NOT (n.state = 1 AND EXISTS (SELECT 1 FROM {p}sessions s WHERE s.id = n.h_session)) ORDER BY n.used LIMIT 500;
  DECLARE c_bound CURSOR FOR SELECT b.name FROM {p}bound b
    WHERE b.used < v_old AND IS_USED_LOCK(b.lock_name) IS NULL ORDER BY b.used LIMIT 500;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_done = TRUE;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK AND NO CHAIN NO RELEASE; RESIGNAL; END;
  UPDATE {p}store SET swept = UTC_TIMESTAMP(6) WHERE ABS(TIMESTAMPDIFF(SECOND, swept, UTC_TIMESTAMP(6))) >= 60;
  IF ROW_COUNT() = 0 THEN
    IF NOT EXISTS (SELECT 1 FROM {p}store) THEN
      CALL {p}store_2();
    END IF;
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
    -- With the name locked no entry is made.
    IF v_found IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {p}entries WHERE name = v_name)
        AND NOT EXISTS (SELECT 1 FROM {p}names n JOIN {p}sessions s ON s.id = n.h_session WHERE n.name = v_name AND n.state = 1) THEN
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
    SELECT name INTO v_found FROM {p}bound WHERE name = v_name AND used < v_old FOR UPDATE SKIP LOCKED;
    IF v_found IS NOT NULL THEN
      DELETE FROM {p}bound WHERE name = v_name;
      SET v_swept = v_swept + 1;
    END IF;
  END LOOP;
  CLOSE c_bound;
  COMMIT AND NO CHAIN NO RELEASE;
  IF v_swept >= 500 THEN
    UPDATE {p}store SET swept = UTC_TIMESTAMP(6) - INTERVAL 59 SECOND;
  END IF;
END
//
-- The row comes last, so that a migration that was interrupted is applied anew.
INSERT IGNORE INTO {p}schema (version) VALUES (2)
//
