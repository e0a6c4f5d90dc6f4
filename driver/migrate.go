package driver

import "context"

// Migrator is a Backend that keeps its locks in tables, which somebody has to create. The
// driver does it at the first use where its role may; where it may not, an administrator
// does it once, with `hasp migrate` or with what `hasp migrate --print` prints.
type Migrator interface {
	// Schema returns the statements that bring an empty database to the version this
	// driver needs, ready to be reviewed and fed to the database's own shell. Applying
	// them twice does no harm. No I/O.
	Schema() string

	// Migrate applies what is missing and returns the versions before and after, 0 for an
	// empty database; they are equal if there was nothing to do. Several processes may
	// call it at once. A schema newer than the driver is an error that wraps ErrInvalid.
	Migrate(ctx context.Context) (from, to int, err error)
}
