package mysqllock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
)

// noteAfter is for how long a lock of GET_LOCK is held before its holder is recorded at the server:
// most are released sooner.
const noteAfter = 20 * time.Millisecond

// notes remembers which record a connection made last. If it gets the same lock again, that record
// would be taken for this holder's.
type notes struct {
	mu   sync.Mutex
	last map[uint64]string // names by the server's numbers of connections
}

// notesMost bounds what is remembered of connections that have ended.
const notesMost = 10000

func (n *notes) has(g grant, name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last[g.connection] == name
}

func (n *notes) add(g grant, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.last == nil || len(n.last) >= notesMost {
		n.last = map[uint64]string{}
	}
	n.last[g.connection] = name
}

// fence makes sure of the token of a lock that was granted, and that no record of an earlier holder
// can be taken for ours. The caller has the turn.
func (t *boundTicket) fence(ctx context.Context, g *grant) (err error) {
	b := t.session.bound
	if g.token == 0 {
		a := t.newAsking()
		err = t.within(ctx, a, t.patience(0), func() error {
			g.token, err = b.lock.raise(a.ctx, t.conn)
			return err
		})
		if err != nil {
			return err
		}
	}
	if b.notes.has(*g, t.request.Name) {
		// On another connection, of which nothing else may ask: it would be silent for as long as
		// TCP tries, and the lock taken by a caller that is not told. Whether the record was made
		// is then tried again beside the holder.
		short, cancel := t.briefly(ctx)
		err := b.lock.note(short, t.request, *g)
		cancel()
		g.recorded = err == nil
		return ctx.Err()
	}
	return nil
}

// noteIn has the holder recorded after a while, unless it has left by then.
func (t *boundTicket) noteIn(after time.Duration, g grant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.left && !t.gone {
		t.noting = time.AfterFunc(after, func() { t.note(g) })
	}
}

// note records the holder at the server. That is noted first: the record may be made though its
// answer is lost. One that failed is tried again, or the holder would be shown without a name for
// as long as it holds; one that was refused is not. Made twice, or late, it does no harm: a record
// counts that has the highest token.
func (t *boundTicket) note(g grant) {
	s := t.session
	if v, over := t.state(); over != nil || !v.Held {
		return
	}
	s.bound.notes.add(g, t.request.Name)
	ctx, cancel := context.WithTimeout(s.done, s.granted)
	defer cancel()
	err := s.bound.lock.note(ctx, t.request, g)
	if err != nil && !errors.Is(err, driver.ErrRefused) && s.done.Err() == nil {
		t.noteIn(s.granted/2, g)
	}
}

// briefly bounds what is asked beside a request on a connection of other requests: for that the
// server gets no more time than for a request that does not wait.
func (t *boundTicket) briefly(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(t.patience(0), t.session.granted))
}
