package promhasp_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/hasptest"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/promhasp"
)

// patience is how long is waited for what must come.
const patience = time.Minute

// The dashboard, asked of a real Prometheus: each expression is understood, and each shows
// what has happened, although most of it happened once only.
func TestDashboardShows(t *testing.T) {
	metrics := promhasp.New(promhasp.Options{})
	store := hasptest.New()
	c := testkit.ClientOn(t, store.Backend(), hasp.WithTTL(6*time.Second), hasp.WithObserver(metrics))
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics, promhasp.Queues(c, time.Second, "deploy"))
	target := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	defer target.Close()
	p := backends.StartPrometheus(t, strings.TrimPrefix(target.URL, "http://"))

	// An application that runs, and has been seen to: what a counter counts before its first
	// reading, Prometheus cannot know.
	testkit.Lock(t, c, "held")
	p.Has(t, patience, "count_over_time(hasp_held[5m]) >= 2")
	happen(t, c, store)

	exporters := onlyExporters(t)
	var shown []string
	for _, panel := range testkit.Dashboard(t, dashboard) {
		for _, target := range panel.Targets {
			if exporters[testkit.Metrics(target.Expr)[0]] { // a test of the command asks for these
				continue
			}
			if !strings.Contains(target.Expr, `store=~"$store"`) {
				t.Errorf("%s shows all stores, whichever is chosen", target.Expr)
			}
			if strings.Contains(target.Expr, "== 0") { // what must not be
				continue
			}
			shown = append(shown, "("+testkit.Shown(target.Expr)+") > 0")
		}
	}
	p.Has(t, patience, shown...)
	// The control: what has not happened is there, and is not shown as if it had.
	p.Has(t, patience, `hasp_lost_total{reason="stalled"} == 0`)
	if got, err := p.Query(`increase(hasp_lost_total{reason="stalled"}[5m]) > 0`); len(got) != 0 || err != nil {
		t.Errorf("a loss that never was: %v, %v", got, err)
	}
}

// happen makes everything that a panel shows happen at least once. A client that waits for "deploy"
// at the end waits on.
func happen(t *testing.T, c *hasp.Client, store *hasptest.Store) {
	t.Helper()
	gone := func(l *hasp.Lease) {
		t.Helper()
		testkit.Await(t, "a loss", l.Context().Done())
	}
	// Held, released, tried without success, and taken away.
	l := testkit.Lock(t, c, "a")
	if _, err := c.Mutex("a").TryLock(t.Context()); !errors.Is(err, hasp.ErrBusy) {
		t.Fatal(err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	l = testkit.Lock(t, c, "a")
	store.Lose("a")
	gone(l)
	// A release without an answer, and renewals, until trust ends.
	l, held := testkit.Lock(t, c, "a"), testkit.Lock(t, c, "b")
	heal := store.Cut()
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := l.Release(short); !errors.Is(err, hasp.ErrUnknown) {
		t.Fatalf("release: %v", err)
	}
	gone(held)
	heal()
	// A waiter whose place is lost with the session, and which then waits again behind another.
	first := testkit.Lock(t, c, "deploy")
	waits, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	go func() { _, _ = c.Mutex("deploy").Lock(waits) }()
	waiting(t, c, 1)
	store.Forget()
	gone(first)
	go func() { _, _ = c.Mutex("deploy").Lock(waits) }()
	waiting(t, c, 1)
	testkit.Lock(t, c, "held") // renewed from here on
}

func waiting(t *testing.T, c *hasp.Client, n int) {
	t.Helper()
	testkit.Until(t, fmt.Sprint(n, " waiters for deploy"), func() error {
		q, err := c.Inspect(t.Context(), "deploy")
		if err == nil && (len(q.Waiters) != n || len(q.Holders) != 1) {
			err = fmt.Errorf("%+v", q)
		}
		return err
	})
}
