package hasp

// AskHolder makes a request that asks the holder of the lock to give it up soon, and says why (at
// most 1 KB of UTF-8). It is a request: a holder that did not ask to be asked ([Revocable]; its
// Owner.Listens says so) is not told, and no holder is made to comply. Others see the reason in
// [Client.Inspect]. A store that does not show who waits refuses it with ErrUnsupported, and
// Revocable as well.
func AskHolder(why string) LockOption {
	return func(c *lockConfig) { c.asks = why }
}

// Revocable calls f when a waiter asks the holder of the lock to give it up: once for each waiter
// that asks, with its owner and the reason (Owner.Asks). f runs on a separate goroutine and may
// release the lease.
//
// It costs a watch on the name while the lock is held, and a look at its queue after each
// change; on a store that cannot be watched a look each second.
func Revocable(f func(by Owner)) LockOption {
	return func(c *lockConfig) { c.revoked = f }
}

// RevocableAtRenewal is [Revocable] without a watch: it looks at the name's queue when a renewal is
// due, each third of the TTL, also where the store needs no renewals. A request is told that much
// later, and a lock that is held for less is not looked at.
func RevocableAtRenewal(f func(by Owner)) LockOption {
	return func(c *lockConfig) { c.revoked, c.revokedUnwatched = f, true }
}

// listen tells f who asks for the lock, for as long as the lease is held.
func (c *Client) listen(l *Lease, r *request) {
	told := map[string]bool{} // by id, those that ask at this moment: an entry that has gone does not come back
	tell := func(q Queue) {
		asking := map[string]bool{}
		for _, w := range q.Waiters {
			if w.Owner.Asks == "" {
				continue
			}
			if !told[w.ID] && l.Held() {
				r.revoked(w.Owner)
			}
			asking[w.ID] = true
		}
		told = asking
	}
	ctx := l.Context()
	if r.revokedUnwatched {
		for sleep(ctx, c.cfg.ttl/3) {
			if q, err := c.inspect(ctx, l.Name(), 0); err == nil { // else it looks again
				tell(q)
			}
		}
		return
	}
	for q, err := range c.Follow(ctx, l.Name()) {
		if err == nil { // else it goes on when the store is back
			tell(q)
		}
	}
}
