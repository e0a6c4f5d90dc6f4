package mysqllock

import (
	"context"
	"database/sql"
	_ "embed" // the migrations
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"

	"github.com/hasplock/hasp/driver"
)

//go:embed schema/1.sql
var version1 string

// migrations are the steps from one version to the next, in the form of MySQL's shell but
// for the delimiter. A step is never changed once it is released: there are databases that have
// it. A step may be applied twice, since MySQL commits each of its statements by itself and it may
// be interrupted. The procedures' names end in their version, so that clients of two versions work
// side by side.
var migrations = []string{version1}

// separator ends a statement in the migrations, since the procedures have semicolons.
const separator = "\n//\n"

// schema is the tables and procedures of one prefix in one database.
type schema struct {
	db     *sql.DB
	prefix string
	never  bool     // create nothing
	steps  []string // migrations; others in tests

	// broken is set when something was missing that the version promises, because it was
	// dropped: every step is applied anew.
	broken atomic.Bool
}

// named puts the prefix into a text, and what a procedure shares with our own statements.
func (s *schema) named(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "{token}", makesToken), "{p}", s.prefix)
}

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
	again := false
	if err == nil && v == len(s.steps) && s.broken.Load() {
		again, err = s.lacks(ctx, s.db)
	}
	if err == nil && (v < len(s.steps) || again) && !s.never {
		_, v, err = s.migrate(ctx)
	}
	switch {
	case errors.Is(err, driver.ErrRefused):
		return fmt.Errorf("%w; an administrator can create the tables with `hasp migrate`, or with what `hasp migrate --print` prints, and grant SELECT, INSERT, UPDATE, DELETE and EXECUTE", err)
	case err != nil:
		return err
	case v < len(s.steps):
		return fmt.Errorf("%w: the tables %s* have version %d, and %d is needed: run `hasp migrate`", driver.ErrRefused, s.prefix, v, len(s.steps))
	case v > len(s.steps):
		return s.tooNew(v)
	}
	return nil
}

func (s *schema) tooNew(v int) error {
	return fmt.Errorf("%w: the tables %s* have version %d, and this hasp knows %d: use a newer one", driver.ErrInvalid, s.prefix, v, len(s.steps))
}

// migrate applies what is missing, on one connection, which has the lock against others that do
// the same, and the mode in which the procedures are stored.
func (s *schema) migrate(ctx context.Context) (from, to int, err error) {
	c, err := s.db.Conn(ctx)
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
	if from > len(s.steps) {
		return from, from, s.tooNew(from)
	}
	steps := s.steps[from:]
	if s.broken.Load() { // looked at under the lock: who had it before us may have made all
		again, err := s.lacks(ctx, c)
		if err != nil {
			return from, from, err
		}
		if again {
			steps = s.steps
		}
	}
	for _, step := range steps {
		for text := range strings.SplitSeq(step, separator) {
			if strings.TrimSpace(text) == "" {
				continue
			}
			if _, err := run(ctx, c, s.named(text)); err != nil {
				return from, from, fmt.Errorf("creating the tables %s*: %w", s.prefix, err)
			}
		}
	}
	s.broken.Store(false)
	return from, len(s.steps), nil
}

// lacks reports whether one of the tables and procedures is not there, and notes if none is
// missing. A client that met a gap may have come while another, or an administrator, applied the
// steps, which drop each procedure before they make it. If it made all anew because of that, it
// would have others meet a gap; or be refused for as long as it lives, where it may not create
// anything.
func (s *schema) lacks(ctx context.Context, q querier) (bool, error) {
	makes := regexp.MustCompile(`(?m)^CREATE (?:TABLE IF NOT EXISTS|PROCEDURE) (\w+)`) // here, and not at the start of every program
	missing := map[string]bool{}
	for _, m := range makes.FindAllStringSubmatch(s.named(strings.Join(s.steps, "")), -1) {
		missing[strings.ToLower(m[1])] = true // some servers keep the names of tables so
	}
	err := each(ctx, q, `SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()
		UNION ALL SELECT routine_name FROM information_schema.routines WHERE routine_schema = DATABASE()`, func(r *sql.Rows) error {
		var name string
		err := r.Scan(&name)
		delete(missing, strings.ToLower(name))
		return err
	})
	if err == nil && len(missing) == 0 {
		s.broken.Store(false)
	}
	return len(missing) > 0, err
}

// alone takes the lock against other clients that migrate, or goes on without it where a cluster
// does not allow it (pxc_strict_mode). Two that migrate at once there may fail to make a procedure
// that the other has just made; each step may be applied again.
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
