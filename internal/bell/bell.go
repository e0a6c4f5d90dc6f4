// Package bell wakes whoever waits for news of a lock.
package bell

import "sync/atomic"

// Bell is rung by those who know that something has changed, and heard by one who then looks
// what it is: one ring says all that were not heard yet. The zero Bell is ready. All methods may
// be called at once from many goroutines.
//
// Its channel is made when somebody first listens: a channel takes 96 bytes, and of ten thousand
// locks that are held, most have never waited.
type Bell struct {
	at atomic.Pointer[chan struct{}]
}

// rung stands in the place of a channel: it was rung, and nobody has listened yet.
var rung = new(chan struct{})

// Ring never waits.
func (b *Bell) Ring() {
	for {
		switch c := b.at.Load(); c {
		case rung:
			return
		case nil:
			if b.at.CompareAndSwap(nil, rung) {
				return // whoever listens first finds it
			}
			// Somebody has begun to listen, or to ring, in between.
		default:
			select {
			case *c <- struct{}{}:
			default: // rung, and not heard yet
			}
			return
		}
	}
}

// Rings returns what to receive from: there is something if the bell has been rung since.
func (b *Bell) Rings() <-chan struct{} {
	for {
		had := b.at.Load()
		if had != nil && had != rung {
			return *had
		}
		c := make(chan struct{}, 1)
		if had == rung {
			c <- struct{}{}
		}
		// If it is rung between the two, this fails, and c is forgotten before anybody saw it.
		if b.at.CompareAndSwap(had, &c) {
			return c
		}
	}
}
