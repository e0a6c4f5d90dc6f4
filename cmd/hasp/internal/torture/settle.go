//go:build unix

package torture

import (
	"context"
	"errors"
	"time"

	"github.com/hasplock/hasp"
)

// settled describes the store after the last worker has ended.
type settled struct {
	stuck   []string // names that cannot be taken
	orphans int      // entries that are there yet
	listed  bool     // the store can say which entries are there
}

// settle takes each name once more, and looks what is left. What a killed worker held is to expire
// within the TTL; the bound is several times that, for a machine under load.
func (r *run) settle(ctx context.Context) (s settled) {
	s.listed = true
	for _, name := range append([]string{r.control}, r.names...) {
		bound, cancel := context.WithTimeout(ctx, 3*r.ttl+20*time.Second)
		if err := r.take(bound, name); err != nil {
			s.stuck = append(s.stuck, name)
		} else {
			n, listed := r.left(bound, name)
			s.orphans += n
			s.listed = s.listed && listed
		}
		cancel()
	}
	return s
}

// left returns how many entries a name has when they do not get fewer any more.
func (r *run) left(ctx context.Context, name string) (n int, listed bool) {
	if r.client == nil {
		return 0, false
	}
	for {
		q, err := r.client.Inspect(ctx, name)
		switch {
		case errors.Is(err, hasp.ErrUnsupported):
			return 0, false
		case err == nil:
			n = len(q.Holders) + len(q.Waiters)
		}
		if err == nil && n == 0 || ctx.Err() != nil {
			return n, true
		}
		time.Sleep(20 * time.Millisecond)
	}
}
