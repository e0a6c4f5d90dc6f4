//go:build unix

package torture

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/testtier"
)

// planted is an adapter on hasp's file locks, which are right and first come, first served, with one
// fault, or with none:
//
//   - right, and says that it is first come, first served;
//   - leaky: each fifth unlock frees the lock a TTL later, and says that it has;
//   - unfair: it says so, too, and polls;
//   - slow: right, with locks that expire by the TTL. It stands still now and then for up to 1.2 TTL,
//     also between the grant and its answer, as programs do on a busy machine.
func planted(kind string) {
	ms, err := strconv.Atoi(os.Getenv("HASP_TTL_MS"))
	ttl := time.Duration(ms) * time.Millisecond
	c, err2 := hasp.Open(context.Background(), os.Getenv("HASP_STORE"))
	if err != nil || err2 != nil {
		fmt.Fprintln(os.Stderr, err, err2)
		os.Exit(1)
	}
	ready := "ready 1.0"
	if kind == "right" || kind == "unfair" {
		ready += " fifo"
	}
	fmt.Println(ready)
	p := plantedLock{kind: kind, ttl: ttl, client: c}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		command, name, _ := strings.Cut(lines.Text(), " ")
		answer := "error: no such command"
		switch command {
		case "lock":
			answer = p.lock(name)
		case "check":
			answer = p.check()
		case "unlock":
			answer = p.unlock()
		}
		if kind == "slow" && rand.N(3) == 0 {
			time.Sleep(rand.N(ttl * 6 / 5))
		}
		fmt.Println(answer)
	}
}

type plantedLock struct {
	kind    string
	ttl     time.Duration
	client  *hasp.Client
	unlocks int

	mu    sync.Mutex
	lease *hasp.Lease // nil: it has expired
}

func (p *plantedLock) lock(name string) string {
	m := p.client.Mutex(name)
	var l *hasp.Lease
	var err error
	if p.kind == "unfair" {
		for l, err = m.TryLock(context.Background()); err != nil; l, err = m.TryLock(context.Background()) {
			time.Sleep(rand.N(10 * time.Millisecond))
		}
	} else if l, err = m.Lock(context.Background()); err != nil {
		return "error: " + err.Error()
	}
	p.mu.Lock()
	p.lease = l
	p.mu.Unlock()
	if p.kind == "slow" {
		time.AfterFunc(p.ttl, func() { p.release(l) })
	}
	return "ok"
}

func (p *plantedLock) check() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lease == nil {
		return "lost"
	}
	return "held"
}

func (p *plantedLock) unlock() string {
	p.mu.Lock()
	l := p.lease
	p.mu.Unlock()
	if p.unlocks++; p.kind == "leaky" && p.unlocks%5 == 0 {
		time.AfterFunc(p.ttl, l.Unlock)
		return "ok"
	}
	if l == nil || !p.release(l) {
		return "lost"
	}
	return "ok"
}

// release reports whether it has released what was not released before.
func (p *plantedLock) release(l *hasp.Lease) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lease != l {
		return false
	}
	p.lease = nil
	return l.Release(context.Background()) == nil
}

// runPlanted runs one; on a busy machine, where little can be judged, for longer until it is judged
// as wanted.
func runPlanted(t *testing.T, kind string, wanted func(*Verdict) bool) {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := config(t, "worker")
	c.Adapter = self + " planted " + kind
	for ; ; c.For *= 3 {
		v, err := Run(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(v.Text())
		if wanted(v) {
			return
		}
		if v.Result == BrokenResult || c.For > time.Minute {
			t.Fatal("it is not judged rightly")
		}
	}
}

// What excludes, and yet is wrong, is convicted of what it does; what is right is not.
func TestPlantedAdapters(t *testing.T) {
	for kind, wanted := range map[string]func(*Verdict) bool{
		"right": func(v *Verdict) bool {
			return v.Result == Held && v.Leaks != nil && *v.Leaks == 0 && v.Inversions != nil && *v.Inversions == 0
		},
		"leaky": func(v *Verdict) bool {
			return v.Result == BrokenResult && v.Leaks != nil && *v.Leaks > 0 && v.Inversions == nil && strings.Contains(v.Broken, "left the lock taken")
		},
		"unfair": func(v *Verdict) bool {
			return v.Result == BrokenResult && *v.Leaks == 0 && *v.Inversions > 0
		},
	} {
		t.Run(kind, func(t *testing.T) { runPlanted(t, kind, wanted) })
	}
}

// A right lock of a program that stands still is not convicted, and the verdict says why there is
// none.
func TestSlowAdapterIsNotConvicted(t *testing.T) {
	testtier.Long(t)
	runPlanted(t, "slow", func(v *Verdict) bool {
		return v.Result == Inconclusive && v.SlowAnswers > 0 && strings.Contains(v.Sentence(), "too slow")
	})
}
