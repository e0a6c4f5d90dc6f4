package mysqllock

import (
	"slices"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/doctor"
)

// Latest is the version of the tables.
var Latest = len(migrations)

// AddStep makes a store of the strategy table that of a newer program, whose tables have one more
// version.
func AddStep(b driver.Backend, step string) {
	s := b.(*table).schema
	s.steps = append(slices.Clone(s.steps), step)
}

// Product is the name of what says this of itself, "" for MySQL and MariaDB.
func Product(said string) string {
	p, _ := doctor.Recognise(products, said)
	return p.Name
}
