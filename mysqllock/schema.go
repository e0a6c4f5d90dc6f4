package mysqllock

import (
	"context"
	"database/sql"
	_ "embed" // the migrations
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/hasplock/hasp/driver"
)

// migrations are the steps from one version to the next, in the form of MySQL's shell but
// for the delimiter. A step is never changed once it is out: there are databases that have
// it. The procedures' names end in their version, so that clients of two versions work side
// by side.
var migrations = []string{migration1, migration2, migration3}

var (
	//go:embed schema/1.sql
	migration1 string
	//go:embed schema/2.sql
	migration2 string
	//go:embed schema/3.sql
	migration3 string
)

// separator ends a statement in the migrations, since the procedures have semicolons.
const separator = "\n//\n"

// schema is the tables and procedures of one prefix in one database.
type schema struct {
	db     *sql.DB
	prefix string
	never  bool // create nothing

	// broken is set when something was missing that the version promises: somebody dropped
	// it, and every step is applied anew.
	broken atomic.Bool
}

// named puts the prefix into a text.
func (s *schema) named(text string) string { return strings.ReplaceAll(text, "{p}", s.prefix) }

// text is what Schema prints.
func (s *schema) text() string {
	return "DELIMITER //\n" + s.named(strings.Join(migrations, "")) + "DELIMITER ;\n"
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
	if err == nil && (v < len(migrations) || s.broken.Load()) && !s.never {
		_, v, err = s.migrate(ctx)
	}
	switch {
	case errors.Is(err, driver.ErrRefused):
		return fmt.Errorf("%w; an administrator can create the tables with `hasp migrate`, or with what `hasp migrate --print` prints, and grant SELECT, INSERT, UPDATE, DELETE and EXECUTE", err)
	case err != nil:
		return err
	case v < len(migrations):
		return fmt.Errorf("%w: the tables %s* have version %d, and %d is needed: run `hasp migrate`", driver.ErrRefused, s.prefix, v, len(migrations))
	case v > len(migrations):
		return s.tooNew(v)
	}
	return nil
}

func (s *schema) tooNew(v int) error {
	return fmt.Errorf("%w: the tables %s* have version %d, and this hasp knows %d: use a newer one", driver.ErrInvalid, s.prefix, v, len(migrations))
}

// migrate applies what is missing, on one connection: the lock against others who do the
// same belongs to it, and so does the mode in which the procedures are stored.
func (s *schema) migrate(ctx context.Context) (from, to int, err error) {
	c, err := s.db.Conn(ctx)
	if err != nil {
		return 0, 0, explain(ctx, err)
	}
	defer discard(c) // with the lock and the mode
	// GET_LOCK knows 64 characters and no databases.
	name := statement("SHA1(CONCAT('hasp schema ', DATABASE(), '.', ?))", s.prefix)
	var got sql.NullInt64
	if err := row(ctx, c, "SELECT GET_LOCK("+name+", 60)", &got); err != nil {
		return 0, 0, err
	}
	if got.Int64 != 1 {
		return 0, 0, errors.New("somebody else has been migrating these tables for a minute")
	}
	if from, err = s.version(ctx, c); err != nil {
		return 0, 0, err
	}
	if from > len(migrations) {
		return from, from, s.tooNew(from)
	}
	steps := migrations[from:]
	if s.broken.Load() {
		steps = migrations
	}
	for _, m := range steps {
		for text := range strings.SplitSeq(m, separator) {
			if strings.TrimSpace(text) == "" {
				continue
			}
			if _, err := run(ctx, c, s.named(text)); err != nil {
				return from, from, fmt.Errorf("creating the tables %s*: %w", s.prefix, err)
			}
		}
	}
	s.broken.Store(false)
	return from, len(migrations), nil
}
