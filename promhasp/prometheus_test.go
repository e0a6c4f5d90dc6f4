package promhasp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/memlock"
	"github.com/hasplock/hasp/promhasp"
)

// patience is how long is waited for what must come.
const patience = time.Minute

// The dashboard, asked of a real Prometheus: each expression is understood, and each shows
// what has happened, although most of it happened once only.
func TestDashboardShows(t *testing.T) {
	metrics := promhasp.New(promhasp.Options{})
	store := memlock.New()
	c := testkit.ClientOn(t, store.Backend(), hasp.WithTTL(3*time.Second), hasp.WithObserver(metrics))
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics, promhasp.Queues(c, time.Second, "deploy"))
	target := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	defer target.Close()
	p := backends.StartPrometheus(t, strings.TrimPrefix(target.URL, "http://"))

	// An application that runs, and has been seen to: what a counter counts before its first
	// reading, Prometheus cannot know.
	testkit.Lock(t, c, "held")
	want(t, p, "count_over_time(hasp_held[5m]) >= 2")
	happen(t, c, store)

	var shown []string
	for _, panel := range panels(t) {
		for _, target := range panel.Targets {
			if !strings.Contains(target.Expr, `store=~"$store"`) {
				t.Errorf("%s shows all stores, whichever is chosen", target.Expr)
			}
			e := strings.NewReplacer("$store", ".*", "$__rate_interval", "5m").Replace(target.Expr)
			shown = append(shown, "("+e+") > 0")
		}
	}
	want(t, p, shown...)
	// The control: what has not happened is there, and is not shown as if it had.
	want(t, p, `hasp_lost_total{reason="stalled"} == 0`)
	if got := query(t, p, `increase(hasp_lost_total{reason="stalled"}[5m]) > 0`); len(got) != 0 {
		t.Errorf("a loss that never was: %v", got)
	}
}

// happen makes everything that a panel shows happen at least once. A client that waits for "deploy"
// at the end waits on.
func happen(t *testing.T, c *hasp.Client, store *memlock.Store) {
	t.Helper()
	gone := func(l *hasp.Lease) {
		t.Helper()
		testkit.Await(t, "a loss", l.Lost())
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

type panel struct {
	Title   string
	Targets []struct{ Expr string }
}

func panels(t *testing.T) []panel {
	t.Helper()
	data, err := os.ReadFile("../docs/grafana/hasp.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct{ Panels []panel }
	if err := json.Unmarshal(data, &dashboard); err != nil || len(dashboard.Panels) == 0 {
		t.Fatalf("%d panels, %v", len(dashboard.Panels), err)
	}
	return dashboard.Panels
}

// want asks until each has an answer: the next reading of the metrics is at hand.
func want(t *testing.T, p *backends.Prometheus, exprs ...string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		exprs = slices.DeleteFunc(exprs, func(e string) bool { return len(query(t, p, e)) > 0 })
		if len(exprs) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Errorf("no data: %s", strings.Join(exprs, "\n"))
			return
		}
	}
}

// query returns the values that Prometheus has for the expression now, as numbers.
func query(t *testing.T, p *backends.Prometheus, expr string) (values []float64) {
	t.Helper()
	reply, err := http.Get("http://" + p.Addr + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.NewDecoder(reply.Body).Decode(&answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s: %s %s, %v", expr, answer.Status, answer.Error, err)
	}
	for _, r := range answer.Data.Result {
		text, _ := r.Value[1].(string)
		if v, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	return values
}
