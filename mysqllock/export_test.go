package mysqllock

import (
	"slices"

	"github.com/hasplock/hasp/driver"
)

// Latest is the version of the tables.
var Latest = len(migrations)

// AddStep makes a store of the strategy table that of a newer program, whose tables have one more
// version.
func AddStep(b driver.Backend, step string) {
	s := b.(*table).schema
	s.steps = append(slices.Clone(s.steps), step)
}
