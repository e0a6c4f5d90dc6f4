//go:build unix

package torture

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/history"
)

// Fault is one that was carried out.
type Fault struct {
	Kind   Kind         `json:"kind"`
	Client string       `json:"client"` // "": all of them, by a fault of the server
	Name   string       `json:"name"`   // that it was to hold
	From   history.Time `json:"from"`
	To     history.Time `json:"to"`
	Holder bool         `json:"holder"` // it held a lock when the fault came, by the record
	Lost   bool         `json:"lost"`   // and lost it
}

// carryOut carries out the plan until ctx ends, and returns when no fault is under way. At most
// half of the processes are disturbed at a time: the others are there to take what is lost.
func (r *run) carryOut(ctx context.Context, plan []Planned) {
	room := make(chan struct{}, max(1, r.Processes/2))
	began := time.Now()
	var all sync.WaitGroup
	for _, p := range plan {
		select {
		case <-time.After(time.Until(began.Add(p.At))):
		case <-ctx.Done():
		}
		if !p.Kind.OfServer() && time.Since(began) > p.At+r.ttl {
			continue // there was no room for it; what comes behind it would be late, too
		}
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		s := r.free(p.Worker)
		if s == nil {
			<-room
			continue
		}
		all.Go(func() {
			defer func() { s.disturbed.Unlock(); <-room }()
			r.inject(ctx, s, p)
		})
	}
	<-ctx.Done()
	all.Wait()
}

// free returns the slot, or the next one that works and is not disturbed, with its mutex held.
func (r *run) free(first int) *slot {
	for i := range r.slots {
		s := r.slots[(first+i)%len(r.slots)]
		if !s.disturbed.TryLock() {
			continue
		}
		r.mu.Lock()
		p := s.proc
		r.mu.Unlock()
		select {
		case <-p.ready:
			if !p.gone() {
				return s
			}
		default:
		}
		s.disturbed.Unlock()
	}
	return nil
}

// inject has the worker hold the name for long, and when it does, disturbs it.
func (r *run) inject(ctx context.Context, s *slot, p Planned) {
	name := r.control
	if p.Name > 0 {
		name = r.names[p.Name-1]
	}
	r.mu.Lock()
	proc := s.proc
	r.mu.Unlock()
	lasts := time.Duration(p.Lasts * float64(r.ttl))
	long := lasts + r.ttl
	switch {
	case p.Kind == Cut || p.Kind == AckLoss:
		long = r.ttl // three renewals: one that fails, and those after it
	case p.Kind.OfServer():
		if !r.serving.TryLock() {
			return // the fault before it lasts yet
		}
		defer r.serving.Unlock()
		long = lasts + 10*r.ttl + 10*time.Second // it is told when to end
	}
	if !r.lingers(ctx, proc, name, long) {
		return
	}
	f := Fault{Kind: p.Kind, Client: proc.client, Name: name, From: history.Now()}
	struck := false
	if p.Kind.OfServer() {
		if struck = r.disturbServer(p, &f, lasts); struck {
			defer func() {
				r.elapse(r.ttl) // what it believes after the fault is of interest
				proc.order(order{Finish: name})
			}()
		}
	} else {
		struck = r.disturbClient(s, proc, p, &f, lasts)
	}
	if !struck {
		return
	}
	f.To = history.Now()
	r.mu.Lock()
	r.faults = append(r.faults, f)
	r.mu.Unlock()
}

// disturbClient returns when the fault is over, or false if there was none.
func (r *run) disturbClient(s *slot, proc *process, p Planned, f *Fault, lasts time.Duration) bool {
	switch p.Kind {
	case Pause:
		if !proc.stop() {
			return false // it has died
		}
		f.From = history.Now()
		r.elapse(lasts)
		proc.resume()
	case Hold:
		s.net.Partition()
		f.From = history.Now()
		r.elapse(lasts)
		s.net.Heal()
	case AckLoss:
		return r.loseAnswer(s.net, proc, f.Name, p.AtRelease)
	case Cut:
		s.net.Reset()
	case Kill:
		r.mu.Lock()
		s.killedByFault = true
		r.mu.Unlock()
		proc.kill()
	}
	return true
}

// disturbServer returns when the server serves again. Without it there is nothing more to do.
func (r *run) disturbServer(p Planned, f *Fault, lasts time.Duration) bool {
	f.Client, f.From = "", history.Now()
	var err error
	switch p.Kind {
	case ServerPause:
		if err = r.Server.Pause(p.Server); err == nil {
			r.elapse(lasts)
			err = r.Server.Resume(p.Server)
		}
	case ServerRestart:
		err = r.Server.Restart(p.Server)
	case ServerForget:
		err = r.Server.Forget(p.Server)
	}
	if err != nil {
		r.fail(fmt.Errorf("%s: %w", p.Kind, err))
	}
	return err == nil
}

// elapse lets the time of a fault pass, to its end unless the run is broken off.
func (r *run) elapse(d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.broken:
	}
}

// lingers orders the worker to hold the name long, and returns true when it does.
func (r *run) lingers(ctx context.Context, p *process, name string, d time.Duration) bool {
	select {
	case got := <-p.lingers: // of an order that was given up
		p.order(order{Finish: got})
	default:
	}
	p.order(order{Linger: name, For: d})
	patience := time.After(5*r.ttl + 10*time.Second)
	for {
		select {
		case got := <-p.lingers:
			if got == name {
				return true
			}
			p.order(order{Finish: got}) // late, of an order that was given up
		case <-p.exited:
			return false
		case <-patience:
			p.order(order{Finish: name})
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// loseAnswer lets the next request of the worker through to the store and swallows the answer, with
// the connection. The next request is its renewal, or its release; or that of an acquisition of
// another name.
func (r *run) loseAnswer(n faultnet.Network, p *process, name string, atRelease bool) bool {
	cut, over := make(chan struct{}, len(n)), make(chan struct{})
	defer close(over)
	for _, proxy := range n {
		lost := proxy.Lose(faultnet.Down, 1, nil)
		go func() {
			select {
			case <-lost:
				cut <- struct{}{}
			case <-over:
			}
		}()
	}
	if atRelease {
		p.order(order{Finish: name})
	}
	defer n.Heal() // disarms what has not struck
	select {
	case <-cut:
		return true
	case <-p.exited:
	case <-time.After(r.ttl):
	}
	return false
}
