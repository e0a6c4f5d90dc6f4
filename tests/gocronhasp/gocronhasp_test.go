package gocronhasp_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/hasplock/hasp"
	_ "github.com/hasplock/hasp/filelock"
	"github.com/hasplock/hasp/gocronhasp"
	"github.com/hasplock/hasp/hasptest"
	"github.com/hasplock/hasp/internal/testkit"
)

// runs counts the runs of a job on all machines.
type runs struct {
	mu           sync.Mutex
	total        int
	inside, most int
	by           map[int]int
}

func (r *runs) job(machine int, takes time.Duration) func() {
	return func() {
		r.mu.Lock()
		r.total++
		r.by[machine]++
		r.inside++
		r.most = max(r.most, r.inside)
		r.mu.Unlock()
		time.Sleep(takes)
		r.mu.Lock()
		r.inside--
		r.mu.Unlock()
	}
}

func (r *runs) get() (total, most int, by map[int]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total, r.most, maps.Clone(r.by) // the jobs go on
}

func schedule(t *testing.T, opt gocron.SchedulerOption, every time.Duration, job func()) gocron.Scheduler {
	t.Helper()
	s, err := gocron.NewScheduler(opt)
	if err == nil {
		_, err = s.NewJob(gocron.DurationJob(every), gocron.NewTask(job), gocron.WithName("report"))
	}
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { _ = s.Shutdown() })
	return s
}

// Three schedulers, one run at a time; with MinHold, one run per interval although the job
// takes no time and the schedulers' clocks do not agree.
func TestLocker(t *testing.T) {
	url := "file://" + t.TempDir() + "/locks"
	r := &runs{by: map[int]int{}}
	began := time.Now()
	const every = 200 * time.Millisecond
	for i := range 3 {
		time.Sleep(30 * time.Millisecond)
		schedule(t, gocron.WithDistributedLocker(gocronhasp.NewLocker(testkit.Client(t, url), hasp.MinHold(150*time.Millisecond))), every, r.job(i, 0))
	}
	testkit.Eventually(t, "five runs", func() bool { n, _, _ := r.get(); return n >= 5 })
	n, most, _ := r.get()
	if most != 1 {
		t.Errorf("%d ran at once", most)
	}
	if least := time.Since(began) / (150 * time.Millisecond); n > int(least)+1 {
		t.Errorf("%d runs in %s: MinHold did not keep the others out", n, time.Since(began))
	}
}

// The control: without the locker all three run the job.
func TestWithoutLocker(t *testing.T) {
	r := &runs{by: map[int]int{}}
	for i := range 3 {
		schedule(t, gocron.WithLogger(gocron.NewLogger(gocron.LogLevelError)), 50*time.Millisecond, r.job(i, 40*time.Millisecond))
	}
	testkit.Eventually(t, "two at once", func() bool { _, most, by := r.get(); return most > 1 && len(by) == 3 })
}

func TestLockerBusy(t *testing.T) {
	store := hasptest.New()
	one, two := testkit.ClientOn(t, store.Backend()), testkit.ClientOn(t, store.Backend())
	lock, err := gocronhasp.NewLocker(one).Lock(t.Context(), "report")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gocronhasp.NewLocker(two).Lock(t.Context(), "report"); !errors.Is(err, hasp.ErrBusy) {
		t.Errorf("second: %v", err)
	}
	other, err := gocronhasp.NewLocker(two).Lock(t.Context(), "another")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []gocron.Lock{lock, other} {
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// gocron gets the refusal of a store that may have forgotten locks as what it is.
func TestLockerInQuarantine(t *testing.T) {
	store := &testkit.Quarantined{Backend: hasptest.New().Backend()}
	store.Left.Store(int64(time.Minute))
	if _, err := gocronhasp.NewLocker(testkit.ClientOn(t, store)).Lock(t.Context(), "report"); !errors.Is(err, hasp.ErrQuarantine) || errors.Is(err, hasp.ErrBusy) {
		t.Errorf("%v", err)
	}
}

// One machine has all the runs; when it goes, another takes them over.
func TestElector(t *testing.T) {
	url := "file://" + t.TempDir() + "/locks"
	r := &runs{by: map[int]int{}}
	var electors []*gocronhasp.Elector
	for i := range 3 {
		e := gocronhasp.NewElector(testkit.Client(t, url), "scheduler", []byte(fmt.Sprint("machine-", i)))
		t.Cleanup(func() { _ = e.Close(context.Background()) })
		electors = append(electors, e)
		schedule(t, gocron.WithDistributedElector(e), 20*time.Millisecond, r.job(i, 0))
	}
	testkit.Eventually(t, "runs", func() bool { n, _, _ := r.get(); return n >= 5 })
	leads := func() (leaders []int) {
		for i, e := range electors {
			if e.IsLeader(t.Context()) == nil {
				leaders = append(leaders, i)
			}
		}
		return leaders
	}
	first := leads()
	if len(first) != 1 {
		t.Fatalf("leaders: %v", first)
	}
	r.mu.Lock()
	if len(r.by) != 1 || r.by[first[0]] == 0 {
		t.Errorf("runs by machine: %v, leader %v", r.by, first)
	}
	r.mu.Unlock()
	watching := testkit.Client(t, url).Election("scheduler")
	if l, err := watching.Leader(t.Context()); err != nil || string(l.Value) != fmt.Sprint("machine-", first[0]) {
		t.Errorf("leader %q, %v", l.Value, err)
	}
	if err := electors[first[0]].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := electors[first[0]].IsLeader(t.Context()); !errors.Is(err, gocronhasp.ErrNotLeader) {
		t.Errorf("leads after Close: %v", err)
	}
	testkit.Eventually(t, "another leads and runs", func() bool {
		now := leads()
		if len(now) != 1 || now[0] == first[0] {
			return false
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.by[now[0]] > 0
	})
}

// While the lead is given up to a store that does not answer, this machine does not lead, and says
// so at once.
func TestElectorClosesWithoutTheStore(t *testing.T) {
	store := hasptest.New()
	e := gocronhasp.NewElector(store.Client(t), "leader", nil)
	testkit.Eventually(t, "this machine leads", func() bool { return e.IsLeader(t.Context()) == nil })
	heal := store.Cut()
	ctx, cancel := context.WithCancel(t.Context())
	closed := make(chan error, 1)
	go func() { closed <- e.Close(ctx) }()
	testkit.Eventually(t, "this machine does not lead", func() bool { return errors.Is(e.IsLeader(t.Context()), gocronhasp.ErrNotLeader) })
	select {
	case err := <-closed:
		t.Errorf("closed without the store: %v", err)
	default:
	}
	cancel()
	if err := testkit.Await(t, "the end of Close", closed); !errors.Is(err, hasp.ErrUnknown) {
		t.Errorf("Close: %v", err)
	}
	heal()
}

// A lead that is lost is campaigned for again.
func TestElectorAgain(t *testing.T) {
	store := hasptest.New()
	e := gocronhasp.NewElector(testkit.ClientOn(t, store.Backend()), "scheduler", nil)
	defer e.Close(context.Background())
	leads := func() bool { return e.IsLeader(t.Context()) == nil }
	testkit.Eventually(t, "leads", leads)
	store.Refuse("scheduler", errors.New("full"))
	if n := store.Lose("scheduler"); n != 1 || leads() {
		t.Errorf("%d lost, leads %t", n, leads())
	}
	store.Refuse("scheduler", nil)
	testkit.Eventually(t, "leads again", leads)
}

// What no repetition cures is the error of IsLeader, and logged; what may pass is logged.
func TestElectorTellsWhyItDoesNotLead(t *testing.T) {
	var log lines
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)

	store := hasptest.New()
	for what, c := range map[string]struct {
		name  string
		value []byte
		want  error
	}{
		"a wrong name":         {"", nil, hasp.ErrInvalid},
		"a value too long":     {"leader", make([]byte, 2000), hasp.ErrInvalid},
		"a store that is full": {"full", nil, hasp.ErrRefused},
	} {
		store.Refuse("full", errors.New("disk full"))
		e := gocronhasp.NewElector(store.Client(t), c.name, c.value)
		testkit.Eventually(t, what, func() bool { return errors.Is(e.IsLeader(t.Context()), c.want) })
		if err := e.IsLeader(t.Context()); !errors.Is(err, gocronhasp.ErrNotLeader) {
			t.Errorf("%s: %v", what, err)
		}
		if text := log.String(); !strings.Contains(text, c.want.Error()) {
			t.Errorf("%s is not logged: %s", what, text)
		}
		if err := e.Close(t.Context()); err != nil {
			t.Errorf("%s: close: %v", what, err)
		}
	}

	e := gocronhasp.NewElector(testkit.ClientOn(t, store.Backend()), "passing", nil)
	defer e.Close(context.Background())
	leads := func() bool { return e.IsLeader(t.Context()) == nil }
	testkit.Eventually(t, "leads", leads)
	store.Refuse("passing", errors.New("read-only for a moment"))
	store.Lose("passing")
	testkit.Eventually(t, "the refusal is logged", func() bool { return strings.Contains(log.String(), "read-only for a moment") })
	store.Refuse("passing", nil)
	testkit.Eventually(t, "leads again", leads)
}

// lines is a log that a test reads while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
