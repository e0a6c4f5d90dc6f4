// Package exporter measures the queues of a store for Prometheus: one process for all locks, beside
// the programs that measure themselves with package promhasp. What both measure has the same names.
//
// It writes Prometheus's text format itself, in 30 lines. The client library, which hasp does not link,
// would make it 0.67 MB larger, for a registry and collectors that are of no use here. The tests have
// Prometheus read what is written.
package exporter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

// Options say what is read.
type Options struct {
	Store    string                                      // the label store, as long as the store has not been reached
	Open     func(context.Context) (*hasp.Client, error) // called at a scrape until it succeeds
	Names    []string                                    // read these, also when they are free; none: those in use
	Prefix   string                                      // of those in use
	MaxNames int                                         // read no more than so many
	Timeout  time.Duration                               // of a whole scrape
	Tell     func(error)                                 // is told when scrapes begin to fail, and nil when they work again
}

// Exporter reads a store when it is asked to. Safe for use by many goroutines: one of them reads at
// a time, so that many scrapers are no more load for the store than one that is as quick.
type Exporter struct {
	o    Options
	turn chan struct{} // holds one value while a scrape is under way; guards all below

	client *hasp.Client // nil until the store was reached
	broken bool         // the last scrape failed
	known  map[string]holders
}

// holders are the ids that the last scrape saw at a name, and when they were first seen to hold.
type holders map[string]time.Time

// New makes an exporter. It asks the store for nothing yet.
func New(o Options) *Exporter {
	return &Exporter{o: o, turn: make(chan struct{}, 1), known: map[string]holders{}}
}

// Close closes the client, after a scrape that is under way.
func (e *Exporter) Close() error {
	e.turn <- struct{}{}
	defer func() { <-e.turn }()
	if e.client == nil {
		return nil
	}
	return e.client.Close()
}

// Scrape reads the store and returns the page, also if not everything could be read; the error says
// what could not. It takes at most the Timeout, and waits for no longer than ctx for its turn: if
// that does not come there is no page.
func (e *Exporter) Scrape(ctx context.Context) ([]byte, error) {
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
	}
	err := ctx.Err()
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) { // also where ctx's timer is about to fire
		err = context.DeadlineExceeded
	}
	if err != nil { // its turn came too late, or not at all
		return nil, fmt.Errorf("another scrape is under way: %w", err)
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, e.o.Timeout)
	defer cancel()
	p := newPage(e.o.Store)
	err = e.read(ctx, p)
	ok := 1.0
	if err != nil {
		ok = 0
	}
	p.add(success, "", ok)
	p.add(duration, "", time.Since(began).Seconds())
	if failed := err != nil; failed != e.broken {
		e.broken = failed
		e.o.Tell(err)
	}
	return p.text(), err
}

func (e *Exporter) read(ctx context.Context, p *page) error {
	if e.client == nil {
		c, err := e.o.Open(ctx)
		if err != nil {
			return err
		}
		e.client = c
	}
	p.store = e.client.Store()
	all, err := e.names(ctx, p)
	if err != nil {
		return err
	}
	s := &scrape{e: e, p: p, seen: map[string]holders{}}
	if err := s.closed(ctx, "hasp-exporter"); err != nil { // a store without names may have forgotten them
		return err
	}
	var failed error // the first: the others fail for the same reason, mostly
	for _, name := range all {
		if err := s.name(ctx, name); err != nil {
			p.add(queueUp, name, 0)
			failed = cmp.Or(failed, err)
			if before, ok := e.known[name]; ok {
				s.seen[name] = before
			}
		}
	}
	if s.closes {
		p.add(quarantine, "", s.left.Seconds())
	}
	e.known = s.seen
	return failed
}

// names are those to read.
func (e *Exporter) names(ctx context.Context, p *page) ([]string, error) {
	all := slices.Clone(e.o.Names)
	if len(all) == 0 {
		for name, err := range e.client.Names(ctx, e.o.Prefix) {
			if err != nil {
				return nil, err
			}
			all = append(all, name)
		}
	}
	chosen, count := choose(all, e.o.MaxNames)
	p.add(names, "", float64(count))
	p.add(leftOut, "", float64(count-len(chosen)))
	return chosen, nil
}

// scrape is one reading.
type scrape struct {
	e    *Exporter
	p    *page
	seen map[string]holders

	closes bool // the store may be in quarantine
	left   time.Duration
}

// closed asks whether the store is in quarantine.
func (s *scrape) closed(ctx context.Context, name string) error {
	b, ok := s.e.client.Backend().(driver.Quarantiner)
	if !ok {
		return nil
	}
	left, err := b.Quarantine(ctx, name)
	s.closes, s.left = true, max(s.left, left)
	return err
}

// name reads one queue.
func (s *scrape) name(ctx context.Context, name string) error {
	q, err := s.e.client.Inspect(ctx, name)
	if err != nil {
		return err
	}
	now := time.Now()
	seen := holders{}
	held := time.Duration(0)
	for _, h := range q.Holders {
		since, ok := s.e.known[name][h.ID]
		if !ok {
			since = now
		}
		seen[h.ID] = since
		held = max(held, now.Sub(since))
	}
	if err := s.eviction(ctx, name); err != nil {
		return err
	}
	s.seen[name] = seen
	s.left = max(s.left, q.Quarantine)
	s.p.add(queueUp, name, 1)
	s.p.add(queueHolders, name, float64(len(q.Holders)))
	s.p.add(queueWaiters, name, float64(len(q.Waiters)))
	s.p.add(oldestWaiter, name, age(q.Waiters, now))
	s.p.add(oldestHolder, name, age(q.Holders, now))
	s.p.add(heldFor, name, held.Seconds())
	return nil
}

// age is that of the first entry; 0 without one, or where the store does not know it. The clock of
// its owner may be ahead of ours.
func age(entries []hasp.Entry, now time.Time) float64 {
	if len(entries) == 0 || entries[0].Since.IsZero() {
		return 0
	}
	return max(0, now.Sub(entries[0].Since)).Seconds()
}

// eviction is when an operator last took the lock away, where the store keeps that.
func (s *scrape) eviction(ctx context.Context, name string) error {
	last, err := s.e.client.LastEviction(ctx, name)
	if errors.Is(err, hasp.ErrUnsupported) {
		return nil
	}
	if err == nil && last != nil {
		s.p.add(lastEviction, name, float64(last.At.UnixMilli())/1000)
	}
	return err
}

// Handler serves /metrics, and /healthz, which answers as long as the process does: whether the
// store answers is a metric, and no reason to start the exporter again.
func (e *Exporter) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", e.metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n")) // to a scraper that may have gone
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// At an address of this machine alone only a page in a browser here asks by another name,
		// which leads to this machine for the purpose (DNS rebinding).
		if at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && httpapi.Here(at.String()) && !httpapi.Here(r.Host) {
			http.Error(w, "asked by a name that is not this machine's (the header Host)", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (e *Exporter) metrics(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), patience(r, e.o.Timeout))
	defer cancel()
	text, err := e.Scrape(ctx)
	if text == nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(text)
}

// patience is for how long the scraper waits, less a tenth for the answer's way: what could be read
// by then is worth more than an answer that comes too late.
func patience(r *http.Request, most time.Duration) time.Duration {
	seconds, err := strconv.ParseFloat(r.Header.Get("X-Prometheus-Scrape-Timeout-Seconds"), 64)
	if err != nil || !(seconds > 0 && seconds < most.Seconds()) {
		return most
	}
	return time.Duration(seconds * 0.9 * float64(time.Second))
}
