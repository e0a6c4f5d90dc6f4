//go:build unix

package torture

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp"
)

// settled describes the store after the last worker has ended.
type settled struct {
	stuck   []string // names that cannot be taken, with the reason
	orphans int      // entries that are there yet
	listed  bool     // the store can say which entries are there
}

// settle takes each name once more, and looks what is left. What a killed worker held is to expire
// within the TTL; the bound is several times that, for a machine under load.
func (r *run) settle(ctx context.Context) (s settled) {
	s.listed = true
	for _, name := range append([]string{r.control}, r.names...) {
		if err := r.takeAtLast(ctx, name); err != nil {
			s.stuck = append(s.stuck, fmt.Sprintf("%s: %v", name, err))
			continue
		}
		bound, cancel := context.WithTimeout(ctx, r.settling())
		n, listed := r.left(bound, name)
		s.orphans += n
		s.listed = s.listed && listed
		cancel()
	}
	return s
}

func (r *run) settling() time.Duration { return 3*r.ttl + 20*time.Second }

// takeAtLast fails if the name cannot be taken twice although another one, which no worker has
// used, can be in between: otherwise it is the machine that is too busy for any lock, or the store
// is away.
func (r *run) takeAtLast(ctx context.Context, name string) (err error) {
	within := func(name string) error {
		ctx, cancel := context.WithTimeout(ctx, r.settling())
		defer cancel()
		return r.take(ctx, name)
	}
	for failed, tries := 0, 0; failed < 2 && tries < 10 && ctx.Err() == nil; tries++ {
		if err = within(name); err == nil {
			return nil
		}
		if within(r.unused) == nil {
			failed++
		}
	}
	return err
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
