package redislock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// Two failovers in less than a TTL bring back the first master, with the data of the second one, to
// which no client has spoken: it is the same process with the same mark, and lacks a grant.
func TestTwoFailovers(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		for _, quarantine := range []string{"on", "off"} {
			t.Run(strategy+"/"+quarantine, func(t *testing.T) {
				t.Parallel()
				master, replica := newReplica(t), newReplica(t)
				storeURL := master.URL() + "?strategy=" + strategy + "&quarantine=" + quarantine
				first, second := client(t, storeURL), client(t, storeURL)
				testkit.Release(t, testkit.Lock(t, second, "a"))
				follow(t, replica, master)
				do(t, replica, "REPLICAOF", "NO", "ONE")
				notTwo(t, first, second, quarantine, func() {
					follow(t, master, replica)
					do(t, master, "REPLICAOF", "NO", "ONE")
				})
			})
		}
	}
}

// A server draws another replication id when its first replica is attached, by a backup, say. That
// is no other reign: it has forgotten nothing, also if it was flushed once.
func TestFirstReplica(t *testing.T) {
	t.Parallel()
	master := newReplica(t)
	do(t, master, "FLUSHALL")
	c := client(t, master.URL(), hasp.WithTTL(T))
	testkit.UseDespiteErrors(t, c, "a")
	reign := func() string {
		_, after, _ := strings.Cut(do(t, master, "INFO", "replication"), "master_replid:")
		return after[:40]
	}
	before := reign()
	follow(t, newReplica(t), master)
	if reign() == before {
		t.Fatal("the replication id is the same")
	}
	wantTry(t, c, "a", nil)
	wantTry(t, client(t, master.URL(), hasp.WithTTL(time.Minute)), "a", nil)
}

// sides is a master that was replaced, and goes on with those of its clients and replicas that are
// cut off with it.
type sides struct {
	old, promoted      *backends.Redis
	oldSide, otherSide []*backends.Redis // replicas
	split              func()
}

func startSides(t *testing.T, oldSide, otherSide int) *sides {
	t.Helper()
	s := &sides{old: newReplica(t), promoted: newReplica(t)}
	link := testkit.Proxy(t, s.old.Addr)
	host, port, _ := strings.Cut(link.Addr(), ":")
	attach := func(n int) (all []*backends.Redis) {
		for range n {
			all = append(all, newReplica(t))
		}
		return all
	}
	s.oldSide, s.otherSide = attach(oldSide), attach(otherSide)
	for _, r := range append(s.otherSide, s.promoted) {
		do(t, r, "REPLICAOF", host, port)
	}
	for _, r := range s.oldSide {
		replicaOf(t, r, s.old)
	}
	for _, r := range append(append(s.otherSide, s.oldSide...), s.promoted) {
		linked(t, r)
	}
	s.split = func() {
		link.Partition()
		do(t, s.promoted, "REPLICAOF", "NO", "ONE")
		for _, r := range s.otherSide {
			follow(t, r, s.promoted)
		}
	}
	return s
}

// renewedFor waits until the lease was renewed for so long, or is lost.
func renewedFor(t *testing.T, l *hasp.Lease, d time.Duration) {
	t.Helper()
	before := l.Deadline()
	testkit.Eventually(t, "renewals", func() bool { return l.Deadline().Sub(before) > d || !l.Held() })
}

// A failover leaves the old master one replica, which goes on confirming what that grants. The time
// of the new master begins when its own replicas confirm: then the old one has too few, if wait is
// half of all replicas or more. With less both have enough: that is the control.
func TestWaitOfTwoMasters(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		for _, c := range []struct {
			wait      string
			otherSide int // replicas that are on the new master's side
			two       bool
		}{{"1", 0, false}, {"1", 1, true}, {"2", 1, false}} {
			if strategy != "queue" && c.wait == "2" {
				continue // its renewals wait for no replica
			}
			t.Run(strategy+"/wait="+c.wait, func(t *testing.T) {
				t.Parallel()
				s := startSides(t, 1, c.otherSide)
				parameters := "?strategy=" + strategy + "&wait=" + c.wait
				const ttl = 2 * T
				held := testkit.Lock(t, client(t, s.old.URL()+parameters, hasp.WithTTL(ttl)), "a")
				s.split()
				second := client(t, s.promoted.URL()+parameters, hasp.WithTTL(ttl))
				type granted struct {
					*hasp.Lease
					believed bool
				}
				got := make(chan granted, 1)
				go func() {
					for t.Context().Err() == nil {
						if l, err := second.Mutex("a").Lock(t.Context()); err == nil {
							got <- granted{l, held.Held()}
							return
						}
					}
				}()
				renewedFor(t, held, 2*ttl)
				if c.two {
					if g := testkit.Await(t, "the second grant", got); !g.believed {
						t.Log("INCONCLUSIVE: the first has lost its lock before")
					}
					return
				}
				select {
				case <-got:
					t.Fatal("granted, and too few replicas could confirm it")
				default:
				}
				follow(t, s.oldSide[0], s.promoted) // as Sentinel has it do
				if g := testkit.Await(t, "the second grant", got); g.believed && strategy == "queue" {
					t.Error("two believe that they hold")
				}
			})
		}
	}
}

// The doctor knows how many replicas must confirm.
func TestDoctorOnWait(t *testing.T) {
	t.Parallel()
	s := startSides(t, 3, 0)
	for wait, level := range map[string]driver.Level{"0": driver.Warn, "1": driver.Warn, "2": driver.Info, "4": driver.Info, "5": driver.Bad} {
		testkit.WantFinding(t, findings(t, s.old.URL()+"?wait="+wait), "replicas", level, "")
	}
}

// A waiter of the new master has queued before grants that the old one still makes, to clients on
// its side. When it is granted, at the end of the quarantine, its token is later than theirs.
func TestTokensOfTwoMasters(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		for _, wait := range []string{"0", "1"} {
			t.Run(strategy+"/wait="+wait, func(t *testing.T) {
				t.Parallel()
				s := startSides(t, 1, 1)
				parameters := "?strategy=" + strategy + "&wait=" + wait
				first := client(t, s.old.URL()+parameters)
				testkit.Release(t, testkit.Lock(t, first, "a"))
				s.split()
				var got []<-chan *hasp.Lease
				for range 2 {
					c := client(t, s.promoted.URL()+parameters)
					if strategy == "queue" {
						got = append(got, testkit.Queued(t, c, "a"))
					} else {
						got = append(got, testkit.Locking(t, c, "a"))
					}
				}
				began := time.Now()
				last := testkit.Lock(t, first, "a")
				testkit.Release(t, last)
				if time.Since(began) > calm/2 {
					t.Skip("inconclusive: the machine paused")
				}
				token := last.Token()
				for i := range 3 {
					var l *hasp.Lease
					select {
					case l = <-got[0]:
					case l = <-got[1]:
					case l = <-got[len(got)-1]:
					case <-time.After(testkit.Patience):
						t.Fatal("no waiter is granted")
					}
					if i == 0 { // a third one comes after the quarantine, and before the second is granted
						c := client(t, s.promoted.URL()+parameters)
						if strategy == "queue" {
							got = append(got, testkit.Queued(t, c, "a"))
						} else {
							got = append(got, testkit.Locking(t, c, "a"))
						}
					}
					if l.Token() <= token {
						t.Errorf("token %d after %d", l.Token(), token)
					}
					token = l.Token()
					if e := testkit.Entries(t, first, "a"); strategy == "queue" && len(e) != 0 {
						t.Errorf("the old master has %v", e)
					}
					testkit.Release(t, l)
				}
			})
		}
	}
}
