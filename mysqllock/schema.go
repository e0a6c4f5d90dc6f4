package mysqllock

import (
	"context"
	"database/sql"
	_ "embed" // the migrations
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/hasplock/hasp/driver"
)

//go:embed schema/2.sql
var version2 string

// oldest is the version that the first step makes, of nothing. Older tables are refused.
const oldest = 2

// migrations are the steps from one version to the next, in the form of MySQL's shell but
// for the delimiter. A step is never changed: there are databases that have it (TestStepsStay). It
// may be applied twice, since MySQL commits each of its statements by itself and it may be
// interrupted, and for what is missing. The procedures' names end in their version, so that clients
// of two versions work side by side.
var migrations = []string{version2}

// separator ends a statement in the migrations, since the procedures have semicolons.
const separator = "\n//\n"

// schema is the tables and procedures of one prefix in one database.
type schema struct {
	db     *sql.DB
	prefix string
	never  bool     // create nothing
	steps  []string // migrations; others in tests

	// broken is set when something was missing that the version promises, because it was
	// dropped, and by `hasp migrate`: all that there is to be is looked for.
	broken atomic.Bool
}

// named puts the prefix into a text, and what procedures share with each other or with our own
// statements. read_only is a number in some servers, and one of several words in others.
func (s *schema) named(text string) string {
	text = strings.NewReplacer("{token}", makesToken,
		"{writable}", "CAST(@@GLOBAL.read_only AS CHAR) IN ('0', 'OFF')",
		"{demand writable}", `IF CAST(@@GLOBAL.read_only AS CHAR) NOT IN ('0', 'OFF') THEN
    SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1290, MESSAGE_TEXT = 'the server is running with read_only: another may have taken over';
  END IF`).Replace(text)
	return strings.ReplaceAll(text, "{p}", s.prefix)
}

// latest is the version of the tables that this driver needs.
func (s *schema) latest() int { return oldest - 1 + len(s.steps) }

// anew is the cure where the tables cannot be used, and must not be made beside others: two clients
// would lock in two sets of tables.
const anew = "stop the clients, drop hasp's tables, and run `hasp migrate`"

// text has the script that Schema prints.
func (s *schema) text() string {
	return "DELIMITER //\n" + s.named(strings.Join(s.steps, "")) + "DELIMITER ;\n"
}

// version is the one in the database, 0 if there is none.
func (s *schema) version(ctx context.Context, q querier) (v int, err error) {
	err = row(ctx, q, s.named("SELECT COALESCE(MAX(version), 0) FROM {p}schema"), &v)
	if number(err) == errNoTable {
		return 0, nil
	}
	return v, err
}

// ready makes sure of the schema before the first use.
func (s *schema) ready(ctx context.Context) error {
	v, err := s.version(ctx, s.db)
	if err == nil && (v < s.latest() || v == s.latest() && s.broken.Load()) && !s.never {
		_, v, err = s.migrate(ctx)
	}
	switch {
	case errors.Is(err, driver.ErrRefused):
		return fmt.Errorf("%w; an administrator can create the tables with `hasp migrate`, or with what `hasp migrate --print` prints, and grant SELECT, INSERT, UPDATE, DELETE and EXECUTE", err)
	case err != nil:
		return err
	case 0 < v && v < oldest:
		return s.tooOld(v)
	case v < s.latest():
		return fmt.Errorf("%w: the tables %s* have version %d, and %d is needed: run `hasp migrate`", driver.ErrRefused, s.prefix, v, s.latest())
	case v > s.latest():
		return s.tooNew(v)
	}
	return nil
}

func (s *schema) tooNew(v int) error {
	return driver.OtherFormat("the set of tables "+s.prefix+"*", v, s.latest(), "the tables and procedures")
}

func (s *schema) tooOld(v int) error {
	return fmt.Errorf("%w: the tables %s* have version %d, which this hasp (%d) cannot bring up to date: %s", driver.ErrInvalid, s.prefix, v, s.latest(), anew)
}

// migrate applies what is missing, on one connection, which has the lock against others that do
// the same, and the mode in which the procedures are stored.
func (s *schema) migrate(ctx context.Context) (from, to int, err error) {
	if whole, err := s.whole(ctx); whole || err != nil {
		return s.latest(), s.latest(), err
	}
	c, err := connOf(ctx, s.db)
	if err != nil {
		return 0, 0, explain(ctx, err)
	}
	defer discard(c) // with the lock and the mode
	// A name of GET_LOCK has 64 characters and belongs to no database.
	name := statement("SHA1(CONCAT('hasp schema ', DATABASE(), '.', ?))", s.prefix)
	if err := alone(ctx, c, name); err != nil {
		return 0, 0, err
	}
	if from, err = s.version(ctx, c); err != nil {
		return 0, 0, err
	}
	texts, err := s.wanted(ctx, c, from) // looked at under the lock: who had it before us may have made all
	if err != nil {
		return from, from, err
	}
	for _, text := range texts {
		if strings.Contains(text, "DROP PROCEDURE") {
			continue // for who applies the step by hand: others may be calling it, and the text is the same
		}
		if _, err := run(ctx, c, text); err != nil && !exists(err) {
			return from, from, fmt.Errorf("creating the tables %s*: %w", s.prefix, err)
		}
	}
	s.broken.Store(false)
	return from, s.latest(), nil
}

// whole reports whether all is there where something seemed to be missing. A client that met a gap
// may have come while an administrator applied the steps by hand, which drop each procedure before
// they make it. It would be refused for as long as it lives, where it may not create anything.
func (s *schema) whole(ctx context.Context) (bool, error) {
	if !s.broken.Load() {
		return false, nil
	}
	v, err := s.version(ctx, s.db)
	if err != nil || v != s.latest() {
		return false, err
	}
	m, err := s.lacks(ctx, s.db)
	if err != nil || !m.none() {
		return false, err
	}
	s.broken.Store(false)
	return true, nil
}

// wanted are the statements that make the latest version of this one.
func (s *schema) wanted(ctx context.Context, q querier, from int) (texts []string, err error) {
	steps := s.steps
	switch broken := s.broken.Load(); {
	case from > s.latest():
		return nil, s.tooNew(from)
	case 0 < from && from < oldest:
		return nil, s.tooOld(from)
	case from > 0 && !broken:
		steps = s.steps[from-oldest+1:]
	default:
		m, err := s.lacks(ctx, q)
		switch {
		case err != nil:
			return nil, err
		case m.version1:
			return nil, s.tooOld(1)
		case m.some && (from > 0 || slices.Contains(m.tables, strings.ToLower(s.prefix)+"schema")): // else it was interrupted
			return nil, fmt.Errorf("%w: of hasp's tables some are there, and not %s: %s", driver.ErrInvalid, strings.Join(m.tables, ", "), anew)
		case from == s.latest() && m.none():
			return nil, nil
		}
		texts = m.keys
	}
	for _, step := range steps {
		for text := range strings.SplitSeq(step, separator) {
			if strings.TrimSpace(text) != "" {
				texts = append(texts, s.named(text))
			}
		}
	}
	return texts, nil
}

// alone takes the lock against other clients that migrate, or goes on without it where a cluster
// does not allow it (pxc_strict_mode). On any other cluster it is its node's, and clients of two nodes
// may migrate at once: each makes what the other has not made yet, and drops nothing.
func alone(ctx context.Context, c *sql.Conn, name string) error {
	var got sql.NullInt64
	err := row(ctx, c, "SELECT GET_LOCK("+name+", 60)", &got)
	switch {
	case number(err) != 0:
		if is, other := galera(ctx, c); is && other == nil {
			return nil
		}
	case err == nil && got.Int64 != 1:
		return errors.New("another client has been migrating these tables for a minute")
	}
	return err
}

// successOnce runs a check until it has succeeded once. Callers that come while one
// checks wait for it: a thousand sessions of one program do not each check the schema.
type successOnce struct {
	done atomic.Bool
	turn chan struct{} // one slot: the caller that fills it may check
}

func (o *successOnce) do(ctx context.Context, check func() error) error {
	if o.done.Load() {
		return ctx.Err()
	}
	select {
	case o.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-o.turn }()
	if o.done.Load() {
		return nil
	}
	err := check()
	o.done.Store(err == nil)
	return err
}

// reset has the next caller check again: the tables did not exist.
func (o *successOnce) reset() { o.done.Store(false) }
