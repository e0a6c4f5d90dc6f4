package pglock

import (
	"context"
	"embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/hasplock/hasp/driver"
)

//go:embed schema/*.sql
var schemaFiles embed.FS

// latest is the version of the tables that this driver needs: the number of files.
const latest = 4

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

func (n naming) version(i int) string {
	text, err := schemaFiles.ReadFile("schema/" + strconv.Itoa(i) + ".sql")
	if err != nil {
		panic(err) // embedded: a mistake in latest
	}
	return n.sql(string(text))
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
const guard = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;\nSELECT pg_advisory_xact_lock(7521983763894337536);\n"

// text is everything that makes an empty database ours, for `hasp migrate --print`.
func (n naming) text() string {
	var b strings.Builder
	b.WriteString("BEGIN;\n" + guard)
	fmt.Fprintf(&b, "CREATE SCHEMA IF NOT EXISTS %q;\n\n", n.schema)
	for i := 1; i <= latest; i++ {
		b.WriteString(n.version(i) + n.setVersion(i))
	}
	b.WriteString("COMMIT;\n")
	fmt.Fprintf(&b, `
-- For each role that uses the locks, APP here:
-- GRANT USAGE ON SCHEMA %q TO APP;
-- GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO APP;
-- Functions may be executed by everybody unless that was revoked; they run as their caller.
`, n.schema, n.sql("hasp_schema, hasp_names, hasp_sessions, hasp_entries, hasp_evictions, hasp_holders, hasp_rows"))
	return b.String()
}

// versionNow reads which version is there, 0 for none.
func (n naming) versionNow(ctx context.Context, r runner) (int, error) {
	var v int64
	err := one(ctx, r, n.sql("SELECT coalesce(max(version), 0)::bigint FROM hasp_schema"), nil, &v)
	if noSchema(err) {
		return 0, nil
	}
	return int(v), err
}

// migrate applies what is missing. Reading the version in the transaction would break it
// where there is no table yet; so the script is harmless when another process has been
// faster, and the guard keeps two from creating the same thing at the same time.
func (n naming) migrate(ctx context.Context, r runner) (from, to int, err error) {
	from, err = n.versionNow(ctx, r)
	if err != nil {
		return 0, 0, explain(ctx, err)
	}
	if from > latest {
		return from, from, fmt.Errorf("%w: the tables in schema %q have version %d, which is newer than this program (%d); update it",
			driver.ErrInvalid, n.schema, from, latest)
	}
	if from == latest {
		return from, from, nil
	}
	err = r.atomically(ctx, func(tx runner) error {
		if err := tx.script(ctx, guard+n.createSchema()); err != nil {
			return err
		}
		for i := from + 1; i <= latest; i++ {
			if err := tx.script(ctx, n.version(i)+n.setVersion(i)); err != nil {
				return err
			}
		}
		return nil
	})
	if sqlState(err) == "42501" {
		return from, from, fmt.Errorf("%w (%w): this role may not create hasp's tables in schema %q; let an administrator run `hasp migrate`, or review and run what `hasp migrate --print` prints: %w",
			driver.ErrRefused, driver.ErrInvalid, n.schema, err)
	}
	if err != nil {
		return from, from, fmt.Errorf("create hasp's tables in schema %q: %w", n.schema, explain(ctx, err))
	}
	return from, latest, nil
}

// createSchema asks for the right to create a schema only where it is missing: CREATE
// SCHEMA IF NOT EXISTS demands it always.
func (n naming) createSchema() string {
	return fmt.Sprintf(`DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = '%s') THEN CREATE SCHEMA %q; END IF;
END $$;
`, n.schema, n.schema)
}
