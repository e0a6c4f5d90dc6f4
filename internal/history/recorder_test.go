package history

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func mustHistory(t *testing.T, r *Recorder) History {
	t.Helper()
	h, err := r.History()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// story records an operation of each kind.
func story(r *Recorder) {
	a := r.Acquire("p1", "x", Exclusive())
	a.Granted(7, 3)
	a.Held(func() bool { return true })
	a.Releasing()
	a.Held(func() bool { return false }) // no news: it is being released
	a.Released()

	b := r.Acquire("p2", "x", Permits(2, 3))
	b.Granted(8, 0)
	b.Held(func() bool { return false })
	b.Lost() // known already
	b.Releasing()
	b.NotHeld(errors.New("too late"))

	r.Acquire("p3", "y", Shared()).Busy()
	r.Acquire("p3", "y", Shared()).Failed(errors.New("no such name"))
	r.Acquire("p3", "y", Shared()).Unknown(errors.New("unknown outcome"))
	c := r.Acquire("p4", "y", Shared())
	c.Granted(9, 0)
	c.Lost()
	c.Releasing()
	c.ReleaseUnknown(errors.New("no answer"))
	r.Acquire("p5", "y", Shared())
}

func checkStory(t *testing.T, h History) {
	t.Helper()
	if len(h) != 7 {
		t.Fatalf("%d operations: %+v", len(h), h)
	}
	a, b, c := h[0], h[1], h[5]
	if a.Client != "p1" || a.Name != "x" || a.Claim != Exclusive() || a.Token != 7 || a.Seq != 3 ||
		a.Outcome != Granted || a.Release != Released || !a.Asked || a.Lost != 0 {
		t.Errorf("%+v", a)
	}
	if !(0 < a.Call && a.Call <= a.Return && a.Return <= a.LastHeld && a.LastHeld <= a.ReleaseCall && a.ReleaseCall <= a.ReleaseReturn) {
		t.Errorf("stamps out of order: %+v", a)
	}
	if b.Claim != Permits(2, 3) || !b.Asked || b.LastHeld != 0 || b.Lost == 0 || b.Release != NotHeld || b.Note != "too late" {
		t.Errorf("%+v", b)
	}
	for i, want := range map[int]Outcome{2: Busy, 3: Failed, 4: Unknown, 6: Pending} {
		if h[i].Outcome != want {
			t.Errorf("operation %d: %+v, want %q", i, h[i], want)
		}
	}
	if c.Asked || c.Lost == 0 || c.Release != Unknown || c.Token != 9 {
		t.Errorf("%+v", c)
	}
	for i, o := range h {
		if _, _, certain := o.Certain(); certain != (i == 0 || i == 5) {
			t.Errorf("operation %d: certain hold %v", i, certain)
		}
	}
}

func TestRecorderInMemory(t *testing.T) {
	r := New()
	story(r)
	checkStory(t, mustHistory(t, r))
}

func TestRecorderInAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "h")
	r, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	story(r)
	h := mustHistory(t, r)
	checkStory(t, h)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}

	again, err := Open(path) // a second process: it appends
	if err != nil {
		t.Fatal(err)
	}
	again.Acquire("late", "z", Shared()).Busy()
	h2 := mustHistory(t, again)
	if len(h2) != 8 || !reflect.DeepEqual(h2[:7], h) {
		t.Errorf("after the second recorder: %+v", h2)
	}
	again.Close()
	again.Acquire("closed", "z", Shared())
	if _, err := again.History(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a lost line was not reported: %v", err)
	}
	if err := again.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a lost line was not reported by Close: %v", err)
	}
}

func TestSaveAndLoad(t *testing.T) {
	r := New()
	story(r)
	h := mustHistory(t, r)
	dir := t.TempDir()
	one, two := filepath.Join(dir, "1"), filepath.Join(dir, "2")
	if err := h[:3].Save(one); err != nil {
		t.Fatal(err)
	}
	if err := h[3:].Save(two); err != nil {
		t.Fatal(err)
	}
	back, err := Load(one, two)
	if err != nil || !reflect.DeepEqual(back, h) {
		t.Errorf("saved %+v\nloaded %+v, %v", h, back, err)
	}
}

func TestLoadForgivesOnlyTornLines(t *testing.T) {
	const call = `{"op":"1","at":5,"what":"called","client":"c","name":"n","units":1,"capacity":1}`
	for text, want := range map[string]string{
		call: "",
		"\n\n" + call + "\n" + `{"op":"1","at":6,"what":"rel`:                           "",
		call + "\n" + `{"op":"1","at":6,"wh` + "\n" + `{"op":"1","at":7,"what":"lost"}`: "",
		call + "\nnonsense":                                                  "2:",
		call + "\n" + call:                                                   "out of order",
		`{"op":"1","at":6,"what":"lost"}`:                                    "out of order",
		call + "\n" + `{"op":"1","at":6,"what":"forgotten"}`:                 "is no event",
		call + strings.Repeat("\n"+`{"op":"1","at":6,"what":"ended"}`, 2):    "twice",
		call + strings.Repeat("\n"+`{"op":"1","at":6,"what":"answered"}`, 2): "twice",
	} {
		path := filepath.Join(t.TempDir(), "h")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		h, err := Load(path)
		switch {
		case want == "" && (err != nil || len(h) != 1):
			t.Errorf("%q: %v, %v", text, h, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
	path := filepath.Join(t.TempDir(), "torn")
	if err := os.WriteFile(path, []byte("\n"+call+"\n"+`{"op":"1","at":6,"wh`), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.Acquire("next", "n", Shared()).Busy()
	if h := mustHistory(t, r); len(h) != 2 || h[1].Outcome != Busy {
		t.Errorf("what was written after a torn line: %+v", h)
	}
	if _, err := Load(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

// A process that is stopped inside Held() has proved nothing about the time after.
func TestYesCountsFromBeforeTheQuestion(t *testing.T) {
	r := New()
	op := r.Acquire("c", "x", Shared())
	op.Granted(1, 0)
	var asked Time
	op.Held(func() bool { asked = Now(); return true })
	if o := mustHistory(t, r)[0]; o.LastHeld >= asked {
		t.Errorf("asked at %d, on record as held at %d", asked, o.LastHeld)
	}
}

// Two goroutines may ask Held() at once, and write their answers in the other order.
func TestLatestYesCounts(t *testing.T) {
	h, err := fold([]event{{Op: "1", At: 1, What: called}, {Op: "1", At: 9, What: held}, {Op: "1", At: 8, What: held}})
	if err != nil || h[0].LastHeld != 9 {
		t.Errorf("%+v, %v", h, err)
	}
}

// A loss is recorded also if the holder stops watching as soon as it knows of it: here both come
// while the last question is being answered.
func TestWatchStoppedAtTheLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New()
		for range 50 {
			a := r.Acquire("c", "x", Exclusive())
			a.Granted(1, 0)
			gone, answer, asked := make(chan struct{}), make(chan struct{}), false
			stop := a.Watch(func() bool {
				<-answer
				asked = !asked
				return asked // yes, then no
			}, gone, time.Hour)
			close(gone)
			go stop()
			synctest.Wait()
			close(answer)
			stop()
			a.Releasing()
			a.NotHeld(nil)
		}
		for _, o := range mustHistory(t, r) {
			if o.Lost == 0 {
				t.Fatalf("no loss in the record: %+v", o)
			}
		}
	})
}

func TestWatchFollowsTheBelief(t *testing.T) {
	r := New()
	asked := make(chan bool)
	ask := func() bool { return <-asked }
	gone := make(chan struct{})

	a := r.Acquire("told", "x", Exclusive())
	a.Granted(1, 0)
	stop := a.Watch(ask, gone, time.Hour)
	asked <- true
	close(gone)
	asked <- true // a broken library: held after Lost() was closed
	stop()
	stop() // a second call does nothing

	b := r.Acquire("asks", "y", Exclusive())
	b.Granted(2, 0)
	stop = b.Watch(ask, nil, time.Microsecond)
	asked <- true
	asked <- true
	asked <- false
	stop()

	c := r.Acquire("stops", "z", Exclusive())
	c.Granted(3, 0)
	stop = c.Watch(ask, nil, time.Hour)
	asked <- true
	stop()

	h := mustHistory(t, r)
	if o := h[0]; !o.Asked || o.Lost == 0 || o.LastHeld <= o.Lost {
		t.Errorf("%+v", o)
	}
	if o := h[1]; !o.Asked || o.LastHeld == 0 || o.Lost <= o.LastHeld {
		t.Errorf("%+v", o)
	}
	if o := h[2]; !o.Asked || o.LastHeld == 0 || o.Lost != 0 {
		t.Errorf("%+v", o)
	}
	if vs := Beliefs(h); len(vs) != 1 || vs[0].Ops[0].Client != "told" {
		t.Errorf("beliefs: %s", texts(vs))
	}
}

// compete takes and releases a lock from many goroutines, and records it.
func compete(r *Recorder, lock, unlock func()) {
	var token atomic.Uint64
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for range 50 {
				op := r.Acquire(fmt.Sprint("g", g), "x", Exclusive())
				lock()
				op.Granted(token.Add(1), 0)
				time.Sleep(10 * time.Microsecond)
				op.Releasing()
				unlock()
				op.Released()
			}
		})
	}
	all.Wait()
}

// A real lock recorded by many goroutines passes, and no lock at all does not: a check
// that finds nothing in the second would find nothing anywhere.
func TestRealMutexAgainstNoMutex(t *testing.T) {
	var mu sync.Mutex
	good := New()
	compete(good, mu.Lock, mu.Unlock)
	if vs := Check(mustHistory(t, good), Options{Fencing: true}); len(vs) > 0 {
		t.Errorf("a real lock: %s", texts(vs))
	}

	bad := New()
	compete(bad, func() {}, func() {})
	vs := Check(mustHistory(t, bad), Options{Fencing: true})
	if got := strings.Join(checksOf(vs), " "); !strings.Contains(got, "exclusion") {
		t.Errorf("without a lock only %q objected", got)
	}
}

func checksOf(vs []Violation) (names []string) {
	for _, v := range vs {
		names = append(names, v.Check)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func texts(vs []Violation) string {
	var all []string
	for _, v := range vs {
		all = append(all, v.String())
	}
	return strings.Join(all, "\n")
}
