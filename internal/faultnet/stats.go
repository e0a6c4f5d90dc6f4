package faultnet

import "context"

// Stats counts since the proxy was made.
type Stats struct {
	// Accepted counts the connections that clients have opened, those rebuffed included.
	// Dials that Refuse refused are the kernel's business and not in it: to count the
	// dials of a client that finds no server, use Rebuff.
	Accepted int
	Live     int // connections that have not ended; half-open ones are among them

	Up, Down Flow
}

// Flow counts the bytes of one direction.
type Flow struct {
	Chunks    int64 // taken from the sender: see the package comment
	Received  int64 // taken from the sender
	Delivered int64 // written to the receiver's socket
	Lost      int64 // swallowed, or waiting when the connection ended
}

// Waiting returns the bytes in the proxy: held, delayed or being written.
func (f Flow) Waiting() int64 { return f.Received - f.Delivered - f.Lost }

// Stats returns the counters.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// WaitFor returns as soon as the counters satisfy cond, or ctx's error. It lets a test
// wait for "the request is in the proxy" instead of sleeping.
func (p *Proxy) WaitFor(ctx context.Context, cond func(Stats) bool) error {
	for {
		p.mu.Lock()
		if p.changed == nil {
			p.changed = make(chan struct{})
		}
		s, changed := p.stats, p.changed
		p.mu.Unlock()
		if cond(s) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// count applies a change to the counters and wakes the waiters. p.mu is held.
func (p *Proxy) count(change func(*Stats)) {
	change(&p.stats)
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

func (s *Stats) flow(dir Direction) *Flow {
	if dir == Up {
		return &s.Up
	}
	return &s.Down
}
