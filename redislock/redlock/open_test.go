package redlock

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// A refusal of some servers is the store's if there is no majority without them, and final only if
// asking again helps none of them.
func TestReason(t *testing.T) {
	b := &store{quorum: 3}
	for i := range 5 {
		b.nodes = append(b.nodes, &node{conn: newLazy(redisconn.Config{Label: fmt.Sprint("server", i)})})
	}
	full, user, down := fmt.Errorf("full: %w", driver.ErrRefused), fmt.Errorf("user: %w, %w", driver.ErrRefused, driver.ErrInvalid), errors.New("down")
	for what, c := range map[string]struct {
		errs             []error
		refused, invalid bool
	}{
		"nothing":                {make([]error, 5), false, false},
		"a minority":             {[]error{nil, user, user, down, nil}, false, false},
		"behind others":          {[]error{down, down, user, user, user}, true, true},
		"a majority for now":     {[]error{down, full, nil, full, full}, true, false},
		"some for now":           {[]error{user, user, nil, full, nil}, true, false},
		"a majority and another": {[]error{full, user, nil, user, user}, true, true},
		"none refuses":           {[]error{down, nil, down, down, nil}, false, false},
	} {
		err := b.reason(c.errs, 2)
		if (err == nil) != (what == "nothing") || errors.Is(err, driver.ErrRefused) != c.refused || errors.Is(err, driver.ErrInvalid) != c.invalid {
			t.Errorf("%s: %v", what, err)
		}
		if what == "none refuses" && !errors.Is(err, down) {
			t.Errorf("%v does not wrap what has happened", err)
		}
	}
}
