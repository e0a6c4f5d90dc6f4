package programs

import (
	"testing"

	"github.com/hasplock/hasp"
)

// openOperators opens a client for each store, for its operators: on a connection without faults.
// In real time all programs share them: one more connection for each of thousands of programs would
// load some servers heavily.
func (s *suite) openOperators(t testing.TB, at []Store) (all []*hasp.Client) {
	for _, store := range at {
		c, err := hasp.New(store.Open(t), hasp.WithTTL(s.base))
		if err != nil {
			t.Fatalf("new client: %v", err)
		}
		all = append(all, c)
	}
	return all
}

// closeOperators ends what openOperators began.
func closeOperators(t testing.TB, all []*hasp.Client) {
	for _, c := range all {
		if err := c.Close(); err != nil {
			t.Errorf("close of an operator's client: %v", err)
		}
	}
}
