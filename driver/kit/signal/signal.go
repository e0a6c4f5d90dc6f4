// Package signal wakes a goroutine that waits for a change of a lock: Ticket.Wait of a driver looks
// at what it knows, and then receives from C; the goroutine that learns of a change notes it, and
// then calls Notify. No change is missed in that order.
package signal

import "sync/atomic"

// Signal is sent by goroutines that know that something has changed, and received by one that then
// looks at the state: one receive stands for all signals before it. The zero Signal is ready. All
// methods may be called at once from many goroutines.
//
// Its channel is made at the first call of C: a channel takes 96 bytes, and of ten thousand
// locks that are held, most have never waited.
type Signal struct {
	at atomic.Pointer[chan struct{}]
}

// pending is the pointer before there is a channel, once Notify was called.
var pending = new(chan struct{})

// Notify signals. It never waits.
func (s *Signal) Notify() {
	for {
		switch c := s.at.Load(); c {
		case pending:
			return
		case nil:
			if s.at.CompareAndSwap(nil, pending) {
				return // the first call of C finds it
			}
			// Another call of C or of Notify came in between.
		default:
			select {
			case *c <- struct{}{}:
			default: // signalled, and not received yet
			}
			return
		}
	}
}

// C returns the channel to receive from: it has a value if Notify was called since the last receive.
func (s *Signal) C() <-chan struct{} {
	for {
		had := s.at.Load()
		if had != nil && had != pending {
			return *had
		}
		c := make(chan struct{}, 1)
		if had == pending {
			c <- struct{}{}
		}
		// If Notify is called between the two, this fails, and c is dropped before it was returned.
		if s.at.CompareAndSwap(had, &c) {
			return c
		}
	}
}
