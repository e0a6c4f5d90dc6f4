package exporter_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/exporter"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/hasptest"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/memlock"
)

// fixture is a store, a client of it that takes locks, and an exporter.
type fixture struct {
	store *hasptest.Store
	*hasp.Client
	*exporter.Exporter
	told []string
}

func newFixture(t *testing.T, o exporter.Options) *fixture {
	t.Helper()
	f := &fixture{store: hasptest.New()}
	f.Client = testkit.ClientOn(t, f.store.Backend(), hasp.WithTTL(time.Minute)) // outlasts an outage
	if o.Open == nil {
		o.Open = func(context.Context) (*hasp.Client, error) { return hasp.New(f.store.Backend()) }
	}
	if o.MaxNames == 0 {
		o.MaxNames = 100
	}
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	o.Tell = func(err error) { f.told = append(f.told, fmt.Sprint(err)) }
	f.Exporter = exporter.New(o)
	t.Cleanup(func() { _ = f.Exporter.Close() })
	return f
}

// values are those of a scrape, by metric and name.
func (f *fixture) values(t *testing.T) map[string]string {
	t.Helper()
	text, _ := f.Scrape(t.Context())
	got := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^(\w+)\{store="[^"]*"(?:,name="(.*)")?\} (\S+)$`).FindAllStringSubmatch(string(text), -1) {
		got[strings.TrimSpace(m[1]+" "+m[2])] = m[3]
	}
	return got
}

func (f *fixture) want(t *testing.T, when string, want map[string]string) {
	t.Helper()
	got := f.values(t)
	for key, value := range want {
		if got[key] != value {
			t.Errorf("%s: %s is %q, want %q, in %v", when, key, got[key], value, got)
		}
	}
}

func TestScrape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, exporter.Options{Timeout: 5 * time.Second})
		f.want(t, "empty", map[string]string{"hasp_exporter_success": "1", "hasp_exporter_names": "0"})

		time.Sleep(time.Second)
		lease := testkit.Lock(t, f.Client, "deploy")
		f.want(t, "held", map[string]string{"hasp_queue_held_seconds deploy": "0"}) // seen for the first time
		time.Sleep(4 * time.Second)
		other := testkit.ClientOn(t, f.store.Backend(), hasp.WithTTL(time.Minute))
		ctx, stop := context.WithCancel(t.Context())
		go func() { _, _ = other.Mutex("deploy").Lock(ctx) }()
		time.Sleep(3 * time.Second)
		f.want(t, "waited for", map[string]string{
			"hasp_queue_up deploy": "1", "hasp_queue_holders deploy": "1", "hasp_queue_waiters deploy": "1",
			"hasp_queue_oldest_waiter_seconds deploy": "3", "hasp_queue_oldest_holder_seconds deploy": "7",
			"hasp_queue_held_seconds deploy": "7", "hasp_exporter_names": "1", "hasp_exporter_names_left_out": "0",
		})
		heal := f.store.Cut()
		began := time.Now()
		f.want(t, "cut off", map[string]string{"hasp_exporter_success": "0", "hasp_queue_up deploy": "", "hasp_queue_holders deploy": ""})
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("a scrape took %s", took)
		}
		f.values(t) // fails as well, and is not told again
		heal()
		f.want(t, "healed", map[string]string{"hasp_exporter_success": "1", "hasp_queue_up deploy": "1"})
		if len(f.told) != 2 || f.told[1] != "<nil>" {
			t.Errorf("told: %q", f.told)
		}

		// Released and taken by another: it has been seen to hold since now.
		_ = lease.Release(t.Context())
		synctest.Wait()
		f.want(t, "released", map[string]string{"hasp_queue_holders deploy": "1", "hasp_queue_waiters deploy": "0", "hasp_queue_held_seconds deploy": "0"})
		stop()
	})
}

// The last eviction of a name in use is told, and none where there was none.
func TestLastEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, exporter.Options{})
		testkit.Lock(t, f.Client, "a")
		testkit.Lock(t, f.Client, "b")
		time.Sleep(time.Second)
		q, err := f.Inspect(t.Context(), "a")
		if err == nil {
			err = f.Evict(t.Context(), "a", q.Holders[0].ID, "test")
		}
		if err != nil {
			t.Fatal(err)
		}
		evicted := float64(time.Now().UnixMilli()) / 1000
		time.Sleep(time.Second)
		testkit.Lock(t, f.Client, "a")
		f.want(t, "in use", map[string]string{
			"hasp_queue_last_eviction_timestamp_seconds a": strconv.FormatFloat(evicted, 'g', -1, 64),
			"hasp_queue_last_eviction_timestamp_seconds b": "",
		})
	})
}

// A queue that is named and cannot be read is told as such, and not as one without holders.
func TestNamedQueueCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, exporter.Options{Timeout: 5 * time.Second, Names: []string{"deploy"}})
		testkit.Lock(t, f.Client, "deploy")
		f.want(t, "held", map[string]string{"hasp_queue_up deploy": "1", "hasp_queue_holders deploy": "1"})
		heal := f.store.Cut()
		f.want(t, "cut off", map[string]string{"hasp_exporter_success": "0", "hasp_queue_up deploy": "0", "hasp_queue_holders deploy": ""})
		heal()
		f.want(t, "healed", map[string]string{"hasp_exporter_success": "1", "hasp_queue_up deploy": "1", "hasp_queue_holders deploy": "1"})
	})
}

// However many names there are, the first are read, and the others counted.
func TestManyNames(t *testing.T) {
	f := newFixture(t, exporter.Options{MaxNames: 3, Prefix: "n/"})
	for i := range 10 {
		testkit.Lock(t, f.Client, fmt.Sprint("n/", i))
	}
	testkit.Lock(t, f.Client, "another")
	got := f.values(t)
	if got["hasp_exporter_names"] != "10" || got["hasp_exporter_names_left_out"] != "7" {
		t.Errorf("%v", got)
	}
	for _, name := range []string{"n/0", "n/1", "n/2"} {
		if got["hasp_queue_up "+name] != "1" {
			t.Errorf("%s is not read: %v", name, got)
		}
	}
	if got["hasp_queue_up n/3"] != "" || got["hasp_queue_up another"] != "" {
		t.Errorf("too many: %v", got)
	}
	// Those that are named are read, free or not.
	f = newFixture(t, exporter.Options{Names: []string{"free", "free"}})
	f.want(t, "named", map[string]string{"hasp_queue_up free": "1", "hasp_queue_holders free": "0", "hasp_exporter_names": "1"})
}

// A name may have any character.
func TestNamesAreEscaped(t *testing.T) {
	f := newFixture(t, exporter.Options{})
	testkit.Lock(t, f.Client, "a\"b\\c\nd")
	if got := f.values(t)[`hasp_queue_up a\"b\\c\nd`]; got != "1" {
		t.Errorf("%v", f.values(t))
	}
}

// A store that does not answer takes a scraper the time that it has, and one that comes second no
// more: it is refused.
func TestTimeIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, exporter.Options{Names: []string{"a", "b", "c"}, Timeout: 10 * time.Second})
		f.want(t, "before", map[string]string{"hasp_exporter_success": "1"})
		f.store.Delay(time.Hour)
		answers := make(chan int, 2)
		began := time.Now()
		for range 2 {
			go func() {
				r := httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil)
				r.Header.Set("X-Prometheus-Scrape-Timeout-Seconds", "2")
				w := httptest.NewRecorder()
				f.Handler().ServeHTTP(w, r)
				if w.Code == http.StatusOK && !strings.Contains(w.Body.String(), `hasp_queue_up{store="mem://",name="c"} 0`) {
					t.Errorf("%s", w.Body)
				}
				answers <- w.Code
			}()
		}
		got := []int{<-answers, <-answers}
		if slices.Sort(got); !slices.Equal(got, []int{http.StatusOK, http.StatusServiceUnavailable}) {
			t.Errorf("%v", got)
		}
		if took := time.Since(began); took != 1800*time.Millisecond {
			t.Errorf("took %s", took)
		}
		// Alive all the same.
		w := httptest.NewRecorder()
		f.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/healthz", nil))
		if w.Code != http.StatusOK {
			t.Errorf("/healthz: %d", w.Code)
		}
		f.store.Delay(0)
	})
}

// A store that is down when the exporter starts is opened later.
func TestOpensLater(t *testing.T) {
	store, down := memlock.New(), errors.New("connection refused")
	f := newFixture(t, exporter.Options{Store: "mem://", Open: func(context.Context) (*hasp.Client, error) {
		if down != nil {
			return nil, down
		}
		return hasp.New(store.Backend())
	}})
	f.want(t, "down", map[string]string{"hasp_exporter_success": "0"})
	down = nil
	f.want(t, "up", map[string]string{"hasp_exporter_success": "1", "hasp_exporter_names": "0"})
}

// forgetful is a store in quarantine.
type forgetful struct{ driver.Backend }

func (forgetful) Quarantine(context.Context, string) (time.Duration, error) {
	return 7 * time.Second, nil
}

func TestQuarantine(t *testing.T) {
	f := newFixture(t, exporter.Options{})
	if _, has := f.values(t)["hasp_quarantine_seconds"]; has {
		t.Error("a store that has no quarantine")
	}
	f = newFixture(t, exporter.Options{Names: []string{"a"}, Open: func(context.Context) (*hasp.Client, error) {
		return hasp.New(forgetful{memlock.New().Backend()})
	}})
	f.want(t, "closed", map[string]string{"hasp_quarantine_seconds": "7"})
}

// docs/METRICS.md has what there is, with its kind and labels, and nothing else.
func TestMetricsAreDocumented(t *testing.T) {
	var documented []string
	for _, m := range testkit.DocumentedMetrics(t, "../../../../docs/METRICS.md") {
		if strings.HasSuffix(m.From, "exporter") {
			documented = append(documented, m.Name+" "+m.Kind+" "+m.Label)
		}
	}
	there := exporter.Families()
	slices.Sort(documented)
	slices.Sort(there)
	if len(there) == 0 || !slices.Equal(documented, there) {
		t.Errorf("documented:\n%s\nthere are:\n%s", strings.Join(documented, "\n"), strings.Join(there, "\n"))
	}
}

// At an address of this machine alone, only this machine's names are answered to.
func TestHost(t *testing.T) {
	e := exporter.New(exporter.Options{Open: func(context.Context) (*hasp.Client, error) { return nil, errors.New("away") }, Timeout: time.Second, Tell: func(error) {}})
	s := httptest.NewServer(e.Handler())
	defer s.Close()
	for host, want := range map[string]int{"": http.StatusOK, "localhost:9747": http.StatusOK, "evil.example.com": http.StatusForbidden, "127.0.0.1.evil.example": http.StatusForbidden} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/healthz", nil)
		if err != nil {
			t.Fatal(err)
		}
		if host != "" {
			q.Host = host
		}
		r, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != want {
			t.Errorf("%q: %d", host, r.StatusCode)
		}
	}
}
