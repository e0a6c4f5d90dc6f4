package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// crossing is a server whose quota is crossed while requests are under way: they have been
// let in, and are applied one after the other, while each makes the database larger.
type crossing struct {
	*testing.T
	e     *backends.Etcd
	c     *hasp.Client // that of the requests
	other *hasp.Client
}

const crossingQuota = 1 << 20

// ops is how many requests of a kind are under way.
const ops = 32

func newCrossing(t *testing.T, o backends.EtcdOptions) *crossing {
	t.Helper()
	// The size of the database is that of the last commit, so each write is one.
	o.Config = map[string]any{"quota-backend-bytes": crossingQuota, "backend-batch-limit": 1}
	x := &crossing{T: t, e: backends.StartEtcd(t, o)}
	url := storeURL([]*backends.Etcd{x.e})
	x.c, x.other = testkit.Client(t, url, hasp.WithTTL(calm)), testkit.Client(t, url, hasp.WithTTL(calm))
	testkit.Release(t, testkit.Lock(t, x.c, "warm"))
	return x
}

func (x *crossing) name(kind string, i int) string { return fmt.Sprint("crossing-", kind, "-", i) }

// hold has the other client take the locks that the requests are about.
func (x *crossing) hold(kind string) (held [ops]*hasp.Lease) {
	byMany(x, ops, func(i int) (err error) {
		held[i], err = x.other.RWMutex(x.name(kind, i)).Lock(context.Background())
		return err
	})
	return held
}

// fill leaves so little room that some of the next writes find it used up, and enough for each
// of them to be let in.
func (x *crossing) fill() {
	x.Helper()
	raw := client(x, x.e.Addr)
	for i := 0; ; i++ {
		s := status(x.T, x.e)
		testkit.Eventually(x, "the server's status", func() bool {
			if s == nil {
				s = status(x.T, x.e)
			}
			return s != nil
		})
		room := crossingQuota - s.DbSize
		size := 16 << 10
		switch {
		case room < 12<<10:
			return
		case room < 64<<10:
			size = 500 // now page by page
		}
		if _, err := raw.Put(ctx(x), fmt.Sprint("fill-", i), strings.Repeat("x", size)); err != nil {
			x.Fatalf("fill: %v", err)
		}
	}
}

// cross sends the requests of one kind and what crosses the quota to a server that is stopped,
// still, so that it lets all of them in.
func (x *crossing) cross(request func(i int) error) (errs [ops]error) {
	x.Helper()
	x.fill()
	raw := client(x, x.e.Addr)
	if err := x.e.Pause(); err != nil {
		x.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range ops {
		wg.Go(func() { raw.Put(ctx(x), fmt.Sprint("more-", i), strings.Repeat("x", 1000)) })
		wg.Go(func() { errs[i] = request(i) })
	}
	time.Sleep(100 * time.Millisecond) // they have been sent
	if err := x.e.Resume(); err != nil {
		x.Fatal(err)
	}
	wg.Wait()
	return errs
}

// check compares what the callers were told with what is in the store, and counts.
func (x *crossing) check(kind string, errs [ops]error, done func(i int) bool) {
	x.Helper()
	count := map[string]int{}
	for i, err := range errs {
		is := done(i)
		count[fmt.Sprintf("told %t, done %t", err == nil, is)]++
		switch {
		case err == nil && !is:
			x.Errorf("%s %d: said to be done, and is not", kind, i)
		case errors.Is(err, driver.ErrRefused) && is:
			x.Errorf("%s %d: done, and said to be refused", kind, i)
		case err != nil && !errors.Is(err, driver.ErrRefused):
			x.Errorf("%s %d: %v", kind, i, err)
		}
	}
	x.Logf("%s: %v", kind, count)
}

func (x *crossing) entry(name string) *driver.Entry {
	x.Helper()
	if there := entries(x.T, x.c.Backend(), name); len(there) > 0 {
		return &there[0]
	}
	return nil
}

// etcd applies the requests that cross the quota, and says of them that there is no space, as
// it does of those that it refuses. A client may only report a refusal that is one: a lock
// without a holder would be kept alive for as long as the client lives (L4).
func TestQuotaIsCrossed(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	kinds := map[string]func(x *crossing){
		"lock": func(x *crossing) {
			var held [ops]*hasp.Lease
			errs := x.cross(func(i int) (err error) {
				held[i], err = x.c.Mutex(x.name("lock", i)).Lock(ctx(x))
				return err
			})
			x.check("lock", errs, func(i int) bool { return x.entry(x.name("lock", i)) != nil })
			for _, l := range held {
				if l != nil {
					testkit.Release(x, l) // which needs no space
				}
			}
		},
		"try": func(x *crossing) {
			held := x.hold("try")
			errs := x.cross(func(i int) error {
				name := x.name("try", i)
				if i%2 == 0 {
					name += "-free"
				}
				_, err := x.c.Mutex(name).TryLock(ctx(x))
				if i%2 == 1 && errors.Is(err, hasp.ErrBusy) {
					return nil
				}
				return err
			})
			x.check("try", errs, func(i int) bool {
				if i%2 == 0 {
					return x.entry(x.name("try", i)+"-free") != nil
				}
				return errs[i] == nil // it is busy with every answer
			})
			for i, l := range held {
				if e := x.entry(l.Name()); e == nil || e.ID != l.ID() {
					x.Errorf("try %d: in front is %+v", i, e)
				}
			}
		},
		"downgrade": func(x *crossing) {
			held := x.hold("down")
			errs := x.cross(func(i int) error { return held[i].Downgrade(ctx(x)) })
			x.check("downgrade", errs, func(i int) bool { return x.entry(held[i].Name()).Units == 1 })
		},
		"adopt": func(x *crossing) {
			held := x.hold("adopt")
			s := testkit.Session(x, x.c.Backend(), calm, nil)
			errs := x.cross(func(i int) error {
				k := s.Ticket(whole(held[i].Name(), fmt.Sprint("adopt-by-", i)))
				_, err := k.(driver.Adopter).Adopt(ctx(x), held[i].ID(), held[i].Token())
				return err
			})
			x.check("adopt", errs, func(i int) bool { return x.entry(held[i].Name()).ID != held[i].ID() })
		},
		"evict": func(x *crossing) {
			held := x.hold("evict")
			errs := x.cross(func(i int) error { return x.c.Evict(ctx(x), held[i].Name(), held[i].ID(), "test") })
			for i, err := range errs {
				if err != nil { // it needs no space but for the note, and does without
					x.Errorf("evict %d: %v", i, err)
				}
			}
			x.check("evict", errs, func(i int) bool { return x.entry(held[i].Name()) == nil })
		},
		// A withdrawal puts the next epoch and deletes the entry in one.
		"withdraw": func(x *crossing) {
			b, p := spoiled(x.T, x.e)
			s := testkit.Session(x, b, calm, nil)
			var tickets [ops]driver.Ticket
			p.set(nil, puts("~withdraw~"))
			for i := range tickets {
				tickets[i] = s.Ticket(whole(x.name("withdraw", i), fmt.Sprint("~withdraw~", i)))
				if _, err := tickets[i].Enqueue(ctx(x)); !errors.Is(err, errIntercepted) {
					x.Fatalf("enqueue: %v", err)
				}
			}
			p.set(nil, nil)
			errs := x.cross(func(i int) error { return tickets[i].Leave(ctx(x)) })
			for i, err := range errs {
				if e := x.entry(x.name("withdraw", i)); e != nil {
					x.Errorf("withdraw %d: left, although deleting needs no space: %+v (%v)", i, e, err)
				}
				if errors.Is(err, driver.ErrGone) {
					x.Errorf("withdraw %d: told to have been lost: %v", i, err)
				}
			}
		},
	}
	for kind, run := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			run(newCrossing(t, backends.EtcdOptions{}))
		})
	}
}

// The same for the transaction of an eviction alone, which comes behind a request that needs
// space as well: the answer that etcd would give is given in the place of the real one.
func TestEvictionIsDoneWithoutSpace(t *testing.T) {
	t.Parallel()
	b, p := spoiled(t, backends.SharedEtcd(t))
	held(t, testkit.Session(t, b, calm, nil).Ticket(whole("full-1", "full-1-a")))
	p.say = rpctypes.ErrGRPCNoSpace
	p.set(nil, puts("~evicted/"))
	if err := b.Evict(ctx(t), "full-1", "full-1-a", "note"); err != nil {
		t.Errorf("evict: %v", err)
	}
	if left := entries(t, b, "full-1"); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
	lastEviction(t, b, "full-1", "note")
}

// A withdrawal that was done and answered with "no space" is asked for again, and leaves nothing
// behind: the next entry of the name has the same key.
func TestWithdrawnWithoutSpaceFreesItsKey(t *testing.T) {
	t.Parallel()
	e := backends.SharedEtcd(t)
	b, p := spoiled(t, e)
	s := testkit.Session(t, b, calm, nil)
	k := s.Ticket(whole("full-2", "full-2-a"))
	p.set(puts("full-2-a"), nil) // it never arrives
	if _, err := k.Enqueue(ctx(t)); !errors.Is(err, errIntercepted) {
		t.Fatalf("enqueue: %v", err)
	}
	p.say = rpctypes.ErrGRPCNoSpace
	p.set(nil, puts("~epoch/"))
	if err := k.Leave(ctx(t)); !errors.Is(err, driver.ErrRefused) {
		t.Fatalf("leave: %v", err)
	}
	p.set(nil, nil)
	if err := k.Leave(ctx(t)); !errors.Is(err, driver.ErrGone) {
		t.Fatalf("leave again: %v", err)
	}
	held(t, s.Ticket(whole("full-2", "full-2-b")))
	if there := keys(t, client(t, e.Addr), "hasp/full-2/"); len(there) != 1 || !strings.HasSuffix(there[0], "-0") {
		t.Errorf("the next entry is at %q, which is not the first key", there)
	}
}
