package page

import (
	"context"
	"sync"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/records"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/driver"
)

const (
	healthEvery   = 10 * time.Second
	deadlockNames = 2000 // a search for deadlocks reads every queue: with more names it is left to hasp deadlocks
)

// report tells a page of what may be wrong.
type report struct {
	Findings  []driver.Finding   `json:"findings"`  // of the store
	Deadlocks []records.Deadlock `json:"deadlocks"` // that are seen
	Searched  bool               `json:"searched"`  // for deadlocks
}

// health examines the store for all pages together.
type health struct {
	mu        sync.Mutex
	at        time.Time
	findings  []driver.Finding // of doctor
	warnings  []driver.Finding // those of them that everybody should know
	deadlocks []hasp.Deadlock
	searched  bool
}

// reports sends a report now and then.
func (p *Page) reports(ctx context.Context, h *access.Holder, to chan<- report) {
	tick := time.NewTicker(healthEvery)
	defer tick.Stop()
	for wait := time.After(time.Second); ; { // when the first look is done, that knows who waits
		select {
		case <-wait:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		p.examine(ctx)
		select {
		case to <- p.reportFor(h):
		case <-ctx.Done():
			return
		}
	}
}

// examine asks the store, unless another page has just done it.
func (p *Page) examine(ctx context.Context) {
	p.health.mu.Lock()
	defer p.health.mu.Unlock()
	if time.Since(p.health.at) < healthEvery/2 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, readBound)
	defer cancel()
	if d, ok := p.o.Store.(driver.Diagnoser); ok {
		if found, err := d.Diagnose(ctx); err == nil { // else the last ones stand: that the store is away is shown anyway
			p.health.findings = found
		}
		if found, err := d.Warnings(ctx); err == nil { // the same
			p.health.warnings = found
		}
	}
	// What was found before may be resolved by now: without a search there is nothing to show, and
	// the page says so.
	p.health.searched, p.health.deadlocks = false, nil
	if names, waiting := p.live.size(); names <= deadlockNames {
		p.health.searched = true
		if waiting > 1 { // a cycle has two that wait
			found, err := p.client.Deadlocks(ctx)
			p.health.searched, p.health.deadlocks = err == nil, found
		}
	}
	p.health.at = time.Now()
}

// size counts names, and those that wait.
func (l *live) size() (names, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.rows {
		waiting += r.Waiting
	}
	return len(l.rows), waiting
}

// reportFor has those parts that a holder may know.
func (p *Page) reportFor(h *access.Holder) report {
	p.health.mu.Lock()
	defer p.health.mu.Unlock()
	r := report{Findings: []driver.Finding{}, Deadlocks: []records.Deadlock{}, Searched: p.health.searched}
	if h.May(access.Operate, "") {
		r.Findings = append(r.Findings, p.health.findings...)
	} else {
		r.Findings = append(r.Findings, p.health.warnings...)
	}
	for _, d := range p.health.deadlocks {
		seen := true
		for _, w := range d.Waits {
			seen = seen && h.May(access.Look, w.Name)
		}
		if seen {
			r.Deadlocks = append(r.Deadlocks, records.OfDeadlock(d))
		}
	}
	return r
}
