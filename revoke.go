package hasp

// AskHolder makes a request that asks the holder of the lock to give it up soon, and says
// why (at most 1 KB of UTF-8). It is a request: a holder that did not ask to be asked
// ([Revocable]) is not told, and no holder is made to comply. Others see the reason in
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

// listen tells f who asks for the lock, for as long as the lease is held.
func (c *Client) listen(l *Lease, f func(Owner)) {
	told := map[string]bool{} // by id
	for q, err := range c.Follow(l.Context(), l.Name()) {
		if err != nil {
			continue // it goes on when the store is back
		}
		for _, w := range q.Waiters {
			if w.Owner.Asks != "" && !told[w.ID] && l.Held() {
				told[w.ID] = true
				f(w.Owner)
			}
		}
	}
}
