package etcdlock

import "sync"

// owed are the entries that were to leave and have not been confirmed to be gone. The core
// asks again for two TTLs and then counts on the store to remove them; but the store does
// so only with the session, which may live for weeks. So each renewal tries them again.
// It takes a store that renews and does not delete for that long to come to this: one
// without disk space, see ticket.withdraw.
type owed struct {
	mu    sync.Mutex
	left  map[*ticket]bool
	going bool
}

// note keeps the outcome of a Leave.
func (o *owed) note(t *ticket, done bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if done {
		delete(o.left, t)
		return
	}
	if o.left == nil {
		o.left = map[*ticket]bool{}
	}
	o.left[t] = true
}

// settle tries again in the background, unless it is at it already.
func (s *session) settle() {
	o := &s.owed
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.left) == 0 || o.going || !s.busy() {
		return
	}
	o.going = true
	var list []*ticket
	for t := range o.left {
		list = append(list, t)
	}
	go func() {
		defer s.closed.Done()
		for _, t := range list {
			_ = t.Leave(s.ctx) // which notes what became of it
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.going = false
	}()
}
