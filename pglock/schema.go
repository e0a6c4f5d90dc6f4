package pglock

import (
	"context"
	_ "embed" // the migrations
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/hasplock/hasp/driver"
)

//go:embed schema/2.sql
var version2 string

// oldest is the version that the first step makes, of nothing. Older tables are refused.
const oldest = 2

// migrations are the steps from one version of the tables to the next. A step is never changed: there
// are databases that have it (TestStepsStay). It may be applied twice, for what is missing.
var migrations = []string{version2}

// naming puts the schema and the prefix where our statements say "hasp_". Both have been
// checked; the schema is quoted because it may be a reserved word.
type naming struct {
	schema, prefix string
	steps          []string // migrations; others in tests
	replacer       *strings.Replacer
	statements     *sync.Map // what sql has made
}

func newNaming(schema, prefix string) naming {
	// Channels ('hasp_) are told apart by random ids and by names, not by schema and prefix: a
	// prefix of full length would not fit into a channel's 63 bytes. An index that is made ("hasp_)
	// is in the schema of its table.
	return naming{schema, prefix, migrations,
		strings.NewReplacer("'hasp_", "'hasp_", `"hasp_`, `"`+prefix, "hasp_", `"`+schema+`".`+prefix), &sync.Map{}}
}

// sql puts them into one of our few statements, and keeps it: to make that of an acquisition takes
// 11 µs.
func (n naming) sql(text string) string {
	if made, ok := n.statements.Load(text); ok {
		return made.(string)
	}
	made := n.replacer.Replace(text)
	n.statements.Store(text, made)
	return made
}

// latest is the version of the tables that this driver needs.
func (n naming) latest() int { return oldest - 1 + len(n.steps) }

// version is the script that makes version i of the one before. The row is the last thing that is
// written.
func (n naming) version(i int) string {
	return n.replacer.Replace(fmt.Sprintf("%s\nINSERT INTO hasp_schema (version) VALUES (%d) ON CONFLICT DO NOTHING;\n", n.steps[i-oldest], i))
}

// preamble begins a migration. Its lock lets one migration at a time into a database, for all
// schemas and prefixes, and ends with the transaction. The number is "hasp" and a version of this
// idea. Above READ COMMITTED a migration that waited for it would not see what the one before has
// made.
//
// The path comes first. A role that may create something in a schema of the path that the migrating
// role has could otherwise define what an operator means, and run its code with that role's rights.
//
// The time-out comes last. A migration that waits to alter a table has all others wait behind it:
// if a dump has the table, for longer than leases last.
const preamble = "SET LOCAL " + safePath + ";\nSET TRANSACTION ISOLATION LEVEL READ COMMITTED;\nSELECT pg_advisory_xact_lock(7521983763894337536);\n" +
	"SET LOCAL lock_timeout = '5s';\n"

// safePath leaves nothing to the caller's search_path: schema/2.sql says why.
const safePath = "search_path = pg_catalog, pg_temp"

// text has everything that makes an empty database ours, for `hasp migrate --print`.
func (n naming) text() string {
	var b strings.Builder
	b.WriteString("BEGIN;\n" + preamble)
	fmt.Fprintf(&b, "CREATE SCHEMA IF NOT EXISTS %q;\n\n", n.schema)
	b.WriteString(n.refuseForeignTables())
	for i := oldest; i <= n.latest(); i++ {
		b.WriteString(n.version(i))
	}
	b.WriteString("COMMIT;\n")
	fmt.Fprintf(&b, `
-- For each role that uses the locks, APP here (hasp migrate --grant APP):
%s-- The functions run as their caller.
`, strings.ReplaceAll(n.grants("APP"), "GRANT", "-- GRANT"))
	return b.String()
}

// grants are the rights of a role that uses the tables and does not make them. The role is an
// identifier, quoted where it needs that.
func (n naming) grants(role string) string {
	return fmt.Sprintf(`GRANT USAGE ON SCHEMA %[2]q TO %[1]s;
GRANT SELECT, INSERT, UPDATE, DELETE ON %[3]s TO %[1]s;
GRANT SELECT, UPDATE ON SEQUENCE %[4]s TO %[1]s;
%[5]s`, role, n.schema, n.sql("hasp_schema, hasp_names, hasp_sessions, hasp_entries, hasp_evictions, hasp_holders, hasp_queues, hasp_ceiling"), n.sql("hasp_tokens"),
		n.executes(role))
}

// executes are the rights to execute each of the functions. Everybody has them unless they were
// revoked from PUBLIC, by default privileges perhaps. Not ON ALL FUNCTIONS IN SCHEMA: it may be a
// schema with other functions in it.
func (n naming) executes(role string) string {
	var b strings.Builder
	for _, step := range n.steps {
		for _, m := range routine.FindAllStringSubmatch(step, -1) {
			fmt.Fprintf(&b, "GRANT EXECUTE ON %s %s TO %s;\n", m[1], n.sql(strings.Join(strings.Fields(m[2]), " ")), role)
		}
	}
	return b.String()
}

// versionNow reads which version is there, 0 for none. Tables that a policy hides would look empty,
// or as if they were not there.
func (n naming) versionNow(ctx context.Context, r runner) (int, error) {
	var v int64
	var hidden bool
	err := one(ctx, r, n.sql(`SELECT coalesce(pg_catalog.max(v.version), 0)::bigint, EXISTS (SELECT FROM pg_catalog.pg_class c
			WHERE c.relnamespace OPERATOR(pg_catalog.=) $1::pg_catalog.text::pg_catalog.regnamespace AND c.relrowsecurity
			AND pg_catalog.starts_with(c.relname::pg_catalog.text, $2::pg_catalog.text) AND pg_catalog.row_security_active(c.oid))
		FROM hasp_schema v`), []any{n.schema, n.prefix}, &v, &hidden)
	switch {
	case noSchema(err):
		return 0, nil
	case err == nil && hidden:
		return 0, errRowSecurity
	}
	return int(v), err
}

// check refuses tables of another version than this driver needs.
func (n naming) check(v int) error {
	switch {
	case v > 0 && v < oldest:
		return fmt.Errorf("%w: hasp's tables in schema %q have version %d, which this program (%d) cannot bring up to date: %s", driver.ErrInvalid, n.schema, v, n.latest(), anew)
	case v < n.latest():
		return fmt.Errorf("%w: hasp's tables in schema %q have version %d, and %d is needed; run `hasp migrate`, or what `hasp migrate --print` prints", driver.ErrInvalid, n.schema, v, n.latest())
	case v > n.latest():
		return driver.OtherFormat(fmt.Sprintf("the set of hasp's tables in schema %q", n.schema), v, n.latest(), "the tables (DROP TABLE ... CASCADE, and hasp's functions)")
	}
	return nil
}

// anew is the cure where the tables cannot be used, and must not be made beside others: two clients
// would lock in two sets of tables.
const anew = "stop the clients, drop hasp's tables (DROP TABLE ... CASCADE, and its functions), and run `hasp migrate`"

// migrate applies what is missing. If the version is the latest that is nothing, unless whole asks
// for a look at all that the migrations make.
func (n naming) migrate(ctx context.Context, r runner, whole bool) (from, to int, err error) {
	from, err = n.versionNow(ctx, r)
	if err != nil {
		return 0, 0, explain(ctx, err)
	}
	for again := 0; from < n.latest() || whole && from == n.latest(); again++ {
		from, err = n.apply(ctx, r)
		// Clients of the version before may be at work. If one of them and we wait for each
		// other, the server undoes one of both.
		if err == nil || again == 4 || !rolledBack(err) {
			break
		}
	}
	switch state := sqlState(err); {
	case err == nil && from > n.latest(), errors.Is(err, errTooOld):
		return from, from, n.check(from)
	case state == invalidFunction || state == duplicateFunction: // the version's row is lost
		return from, from, fmt.Errorf("%w: functions of another version are in schema %q: %s: %w", driver.ErrInvalid, n.schema, anew, err)
	case errors.Is(err, driver.ErrInvalid):
		return from, from, err
	case state == foreignOwner:
		return from, from, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	case state == "42501":
		return from, from, fmt.Errorf("%w (%w): this role may not create hasp's tables in schema %q; %s: %w",
			driver.ErrRefused, driver.ErrInvalid, n.schema, grantCure, err)
	case state == lockNotAvailable:
		return from, from, fmt.Errorf("hasp's tables in schema %q are to be brought up to date, and a long transaction (a dump?) has them; try again when it has ended: %w", n.schema, err)
	case err != nil:
		return from, from, fmt.Errorf("create hasp's tables in schema %q: %w", n.schema, explain(ctx, err))
	}
	return from, n.latest(), nil
}

// apply does so in one transaction, from the version that is there when it is our turn: another
// process may have been faster, and others are at work with what it has made.
func (n naming) apply(ctx context.Context, r runner) (from int, err error) {
	err = r.atomically(ctx, func(tx runner) error {
		if err := tx.script(ctx, preamble+n.createSchema()); err != nil {
			return err
		}
		// A statement that fails would break the transaction.
		var there bool
		err := one(ctx, tx, n.sql("SELECT to_regclass($1::text) IS NOT NULL"), []any{n.sql("hasp_schema")}, &there)
		if err == nil && there {
			from, err = n.versionNow(ctx, tx)
		}
		switch {
		case err != nil || from > n.latest():
			return err
		case from > 0 && from < oldest:
			return errTooOld
		}
		missing, err := n.lacks(ctx, tx)
		again := len(missing.tables)+len(missing.others) > 0
		if err == nil && again {
			err = tx.script(ctx, n.refuseForeignTables())
		}
		switch {
		case err != nil:
			return err
		case missing.some:
			return fmt.Errorf("%w: of hasp's tables in schema %q some are there, and not %s: %s", driver.ErrInvalid, n.schema, strings.Join(missing.tables, ", "), anew)
		}
		first := from + 1
		if again {
			first = oldest
		}
		for i := max(first, oldest); err == nil && i <= n.latest(); i++ {
			err = tx.script(ctx, n.version(i))
		}
		return err
	})
	return from, err
}

var errTooOld = errors.New("too old") // check says it to people

// missing names what the migrations make and is not there.
type missing struct {
	tables, others []string
	some           bool // some tables are missing, and others are there: what those say is not whole
}

// lacks looks for everything: a dump of the tables has no functions (pg_dump -t), and indexes are
// dropped by hand.
func (n naming) lacks(ctx context.Context, r runner) (m missing, err error) {
	tables := n.made(makingTable)
	err = r.each(ctx, `SELECT w.name FROM pg_catalog.unnest($2::pg_catalog.text::pg_catalog.text[]) w(name)
		LEFT JOIN pg_catalog.pg_namespace s ON s.nspname::pg_catalog.text OPERATOR(pg_catalog.=) $1::pg_catalog.text
		WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.relnamespace OPERATOR(pg_catalog.=) s.oid AND c.relname::pg_catalog.text OPERATOR(pg_catalog.=) w.name)
			AND NOT EXISTS (SELECT FROM pg_catalog.pg_proc p WHERE p.pronamespace OPERATOR(pg_catalog.=) s.oid AND p.proname::pg_catalog.text OPERATOR(pg_catalog.=) w.name)`,
		[]any{n.schema, textArray(n.made(making))}, anyNumber, func(scan func(...any) error) error {
			var name string
			err := scan(&name)
			if slices.Contains(tables, name) {
				m.tables = append(m.tables, name)
			} else {
				m.others = append(m.others, name)
			}
			return err
		})
	m.some = 0 < len(m.tables) && len(m.tables) < len(tables)
	return m, err
}

// createSchema asks for the right to create a schema only where it is missing: CREATE
// SCHEMA IF NOT EXISTS demands it always.
func (n naming) createSchema() string {
	return fmt.Sprintf(`DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = '%s') THEN CREATE SCHEMA %q; END IF;
END $$;
`, n.schema, n.schema)
}

// refuseForeignTables fails if a role that need not be trusted has made what we are about to make:
// IF NOT EXISTS would take its table, with its triggers, for ours, and each client would run
// them.
func (n naming) refuseForeignTables() string {
	return fmt.Sprintf(`DO $$
DECLARE
  v_name text;
  v_owner text;
BEGIN
  SELECT x.name, x.owner::regrole::text INTO v_name, v_owner FROM (
      SELECT c.relname::text AS name, c.relowner AS owner FROM pg_class c WHERE c.relnamespace = to_regnamespace('%[1]s')
      UNION ALL SELECT p.proname::text, p.proowner FROM pg_proc p WHERE p.pronamespace = to_regnamespace('%[1]s')) x
    WHERE x.name = ANY ('{%[2]s}'::text[]) AND x.owner <> (SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user)
      AND x.owner NOT IN (SELECT s.nspowner FROM pg_namespace s WHERE s.nspname = '%[1]s')
      AND x.owner NOT IN (SELECT d.datdba FROM pg_database d WHERE d.datname = current_database())
      AND x.owner NOT IN (SELECT r.oid FROM pg_roles r WHERE r.rolsuper) LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION '%% in schema %% belongs to %%, which owns neither the schema nor the database', v_name, '%[1]s', v_owner
      USING ERRCODE = 'HASP2', HINT = 'Find out which role made it and why. If it is yours, give it to the role that migrates.';
  END IF;
END $$;
`, n.schema, strings.Join(n.made(making), ","))
}

// making finds what the migrations make, makingTable the tables among it, and routine the functions
// and procedures, with what tells each from another of its name.
var (
	making      = regexp.MustCompile(`(?m)^CREATE (?:TABLE IF NOT EXISTS|SEQUENCE IF NOT EXISTS|(?:UNIQUE )?INDEX IF NOT EXISTS|OR REPLACE FUNCTION|OR REPLACE PROCEDURE) "?hasp_(\w+)`)
	makingTable = regexp.MustCompile(`(?m)^CREATE TABLE IF NOT EXISTS hasp_(\w+)`)
	routine     = regexp.MustCompile(`(?m)^CREATE OR REPLACE (FUNCTION|PROCEDURE) (hasp_\w+\([^)]*\))`)
)

// made are the names of what one of these finds.
func (n naming) made(what *regexp.Regexp) []string {
	var names []string
	for _, step := range n.steps {
		for _, m := range what.FindAllStringSubmatch(step, -1) {
			names = append(names, n.prefix+m[1])
		}
	}
	return names
}
