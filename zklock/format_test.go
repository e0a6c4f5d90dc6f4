package zklock

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// A root of another format is refused by all that would lock there, and by lists, at the first use.
// The controls: a root that is missing or has no data gets our number, and another program's data
// stay as they are.
func TestOtherFormat(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	a := admin(t, z)
	open := func(root string) *hasp.Client {
		return testkit.ClientOn(t, patient(t, &Options{Root: root}, z.Addr), hasp.WithTTL(time.Minute))
	}
	for i, number := range []string{"2", "0", "x"} {
		root := fmt.Sprintf("/other%d", i)
		testkit.Must[string](t)(a.Create(root, []byte(formatBegin+number), zk.FlagPersistent, zk.WorldACL(zk.PermAll)))
		_, list := open(root).Inspect(testkit.Context(t), "a")
		c := open(root)
		_, try := c.Mutex("a").TryLock(testkit.Context(t))
		_, lock := c.Mutex("a").Lock(testkit.Context(t))
		var names error
		for _, err := range open(root).Names(testkit.Context(t), "") {
			names = err
		}
		for what, err := range map[string]error{"a look": list, "a try": try, "a lock": lock, "the names": names} {
			if !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), "and this program knows format 1") || !strings.Contains(err.Error(), "the node "+root) {
				t.Errorf("format %s: %s: %v", number, what, err)
			}
		}
		testkit.WantFinding(t, testkit.Findings(t, patient(t, &Options{Root: root}, z.Addr)), "format", driver.Bad, "has format")
		if below, _, err := a.Children(root); err != nil || len(below) != 0 {
			t.Errorf("format %s: written was %q, %v", number, below, err)
		}
	}
	for root, data := range map[string]string{"/missing/root": "missing", "/without": "", "/theirs": "10.1.2.3"} {
		want := string(formatText)
		if data != "missing" {
			testkit.Must[string](t)(a.Create(root, []byte(data), zk.FlagPersistent, zk.WorldACL(zk.PermAll)))
			if data != "" {
				want = data
			}
		}
		testkit.Release(t, testkit.Lock(t, open(root), "a"))
		if got, _, err := a.Get(root); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v; want %q", root, got, err, want)
		}
		testkit.Release(t, testkit.Lock(t, open(root), "a"))
	}
}

// What is stored of a queue in each dialect. A change needs another number.
func TestStoredFormat(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	a := admin(t, z)
	var stored []string
	for _, dialect := range []Dialect{DialectCurator, DialectCuratorRW, DialectKazoo} {
		root := "/stored-" + string(dialect)
		b := patient(t, &Options{Root: root, Dialect: dialect}, z.Addr)
		s := openSession(t, b, time.Minute)
		for i, r := range []driver.Request{
			{Name: "a/b", Units: driver.Whole, Capacity: driver.Whole}, {Name: "r", Units: 1, Capacity: driver.Whole},
			{Name: "s", Units: 2, Capacity: 3}, {Name: "e", Units: driver.Whole, Capacity: driver.Whole},
		} {
			r.ID, r.Owner, r.Value, r.Since = fmt.Sprint("id", i), "ana", []byte("v"), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			testkit.Held(t, s.Ticket(r))
		}
		if err := b.Evict(testkit.Context(t), "e", "id3", "note"); err != nil {
			t.Fatal(err)
		}
		var tell func(path string)
		tell = func(path string) {
			data, _, err := a.Get(path)
			below, _, err2 := a.Children(path)
			if err := errors.Join(err, err2); err != nil {
				t.Fatal(err)
			}
			stored = append(stored, path+": "+string(data))
			slices.Sort(below)
			for _, name := range below {
				tell(path + "/" + name)
			}
		}
		tell(root)
	}
	testkit.SameFormat(t, "ZooKeeper", format, stored, "0a5e74538da3aa3d")
}
