package pglock

import (
	"context"
	"embed"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/hasplock/hasp/driver"
)

//go:embed schema/*.sql
var schemaFiles embed.FS

// latest is the version of the tables that this driver needs: the number of files.
const latest = 7

// naming puts the schema and the prefix where our statements say "hasp_". Both have been
// checked; the schema is quoted because it may be a reserved word.
type naming struct {
	schema, prefix string
	replacer       *strings.Replacer
}

func newNaming(schema, prefix string) naming {
	home := `"` + schema + `".` + prefix
	// Channels are told apart by random session ids, not by schema and prefix: a prefix of
	// full length would not fit into a channel's 63 bytes.
	return naming{schema, prefix, strings.NewReplacer("'hasp_", "'hasp_", "hasp_", home)}
}

func (n naming) sql(text string) string { return n.replacer.Replace(text) }

func (n naming) version(i int) string { return n.sql(script(i)) }

func script(i int) string {
	text, err := schemaFiles.ReadFile("schema/" + strconv.Itoa(i) + ".sql")
	if err != nil {
		panic(err) // embedded: a mistake in latest
	}
	return string(text)
}

// setVersion is the end of a version's script; the row is the last thing that is written.
func (n naming) setVersion(i int) string {
	return n.sql(fmt.Sprintf(`
CREATE TABLE IF NOT EXISTS hasp_schema (version int PRIMARY KEY);
INSERT INTO hasp_schema (version) VALUES (%d) ON CONFLICT DO NOTHING;
`, i))
}

// guard lets one migration at a time into a database, whatever its schema and prefix: the
// lock ends with the transaction. The number is "hasp" and a version of this idea. Above
// READ COMMITTED whoever waited for it would not see what the one before has made.
//
// The path comes first. Whoever may create something in a schema of the path that the migrating
// role has would otherwise be asked what an operator means, and answer with that role's rights.
//
// The time-out comes last. Whoever waits to alter a table has all others wait behind him: if a
// dump has the table, for longer than leases last.
const guard = "SET LOCAL " + safePath + ";\nSET TRANSACTION ISOLATION LEVEL READ COMMITTED;\nSELECT pg_advisory_xact_lock(7521983763894337536);\n" +
	"SET LOCAL lock_timeout = '5s';\n"

// safePath leaves nothing to the caller's search_path: schema/5.sql says why.
const safePath = "search_path = pg_catalog, pg_temp"

// text is everything that makes an empty database ours, for `hasp migrate --print`.
func (n naming) text() string {
	var b strings.Builder
	b.WriteString("BEGIN;\n" + guard)
	fmt.Fprintf(&b, "CREATE SCHEMA IF NOT EXISTS %q;\n\n", n.schema)
	b.WriteString(n.refuseForeignTables())
	for i := 1; i <= latest; i++ {
		b.WriteString(n.version(i) + n.setVersion(i))
	}
	b.WriteString("COMMIT;\n")
	fmt.Fprintf(&b, `
-- For each role that uses the locks, APP here:
-- GRANT USAGE ON SCHEMA %q TO APP;
-- GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO APP;
-- Functions may be executed by everybody unless that was revoked; they run as their caller.
`, n.schema, n.sql("hasp_schema, hasp_names, hasp_sessions, hasp_entries, hasp_evictions, hasp_holders, hasp_lines, hasp_rows"))
	return b.String()
}

// versionNow reads which version is there, 0 for none.
func (n naming) versionNow(ctx context.Context, r runner) (int, error) {
	var v int64
	err := one(ctx, r, n.sql("SELECT coalesce(pg_catalog.max(v.version), 0)::bigint FROM hasp_schema v"), nil, &v)
	if noSchema(err) {
		return 0, nil
	}
	return int(v), err
}

// migrate applies what is missing.
func (n naming) migrate(ctx context.Context, r runner) (from, to int, err error) {
	from, err = n.versionNow(ctx, r)
	if err != nil {
		return 0, 0, explain(ctx, err)
	}
	for again := 0; from < latest; again++ {
		from, err = n.apply(ctx, r)
		// Clients of the version before may be at work. If one of them and we wait for each
		// other the server undoes one of us.
		if err == nil || again == 4 || !rolledBack(err) {
			break
		}
	}
	switch state := sqlState(err); {
	case err == nil && from > latest:
		return from, from, fmt.Errorf("%w: the tables in schema %q have version %d, which is newer than this program (%d); update it",
			driver.ErrInvalid, n.schema, from, latest)
	case state == stranger:
		return from, from, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	case state == "42501":
		return from, from, fmt.Errorf("%w (%w): this role may not create hasp's tables in schema %q; let an administrator run `hasp migrate`, or review and run what `hasp migrate --print` prints: %w",
			driver.ErrRefused, driver.ErrInvalid, n.schema, err)
	case state == lockNotAvailable:
		return from, from, fmt.Errorf("hasp's tables in schema %q are to be brought up to date, and a long transaction (a dump?) has them; try again when it has ended: %w", n.schema, err)
	case err != nil:
		return from, from, fmt.Errorf("create hasp's tables in schema %q: %w", n.schema, explain(ctx, err))
	}
	return from, latest, nil
}

// apply does so in one transaction, from the version that is there when it is our turn: another
// process may have been faster, and others are at work with what it has made.
func (n naming) apply(ctx context.Context, r runner) (from int, err error) {
	err = r.atomically(ctx, func(tx runner) error {
		if err := tx.script(ctx, guard+n.createSchema()); err != nil {
			return err
		}
		// A statement that fails would break the transaction.
		var there bool
		err := one(ctx, tx, n.sql("SELECT to_regclass($1::text) IS NOT NULL"), []any{n.sql("hasp_schema")}, &there)
		if err == nil && there {
			from, err = n.versionNow(ctx, tx)
		}
		if err == nil && from == 0 {
			err = tx.script(ctx, n.refuseForeignTables())
		}
		for i := from + 1; err == nil && i <= latest; i++ {
			err = tx.script(ctx, n.version(i)+n.setVersion(i))
		}
		return err
	})
	return from, err
}

// createSchema asks for the right to create a schema only where it is missing: CREATE
// SCHEMA IF NOT EXISTS demands it always.
func (n naming) createSchema() string {
	return fmt.Sprintf(`DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = '%s') THEN CREATE SCHEMA %q; END IF;
END $$;
`, n.schema, n.schema)
}

// refuseStrangers fails if a role that nobody need trust has made what we are about to make: IF
// NOT EXISTS would take his table, with his triggers on it, for ours, and each client
// would run them.
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
    RAISE EXCEPTION '%% in schema %% belongs to %%, who owns neither the schema nor the database', v_name, '%[1]s', v_owner
      USING ERRCODE = 'HASP2', HINT = 'Look at who made it and why. If it is yours, give it to the role that migrates.';
  END IF;
END $$;
`, n.schema, strings.Join(n.made(), ","))
}

// making finds what the scripts make.
var making = regexp.MustCompile(`(?m)^CREATE (?:OR REPLACE )?(?:TABLE IF NOT EXISTS|FUNCTION|PROCEDURE) hasp_(\w+)`)

// made are the names of all tables and functions.
func (n naming) made() []string {
	names := []string{n.prefix + "schema"}
	for i := 1; i <= latest; i++ {
		for _, m := range making.FindAllStringSubmatch(script(i), -1) {
			names = append(names, n.prefix+m[1])
		}
	}
	return names
}
