package zklock

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hasplock/hasp/driver"
)

const testUUID = "9f86d081-884c-7d65-9a2f-eaa0c55ad015" // of the SHA-256 of "test"

// The names that are written, byte for byte.
func TestPrefix(t *testing.T) {
	t.Parallel()
	hex := strings.ReplaceAll(testUUID, "-", "")
	for _, c := range []struct {
		dialect         Dialect
		units, capacity int64
		want            string
	}{
		{DialectCurator, driver.Whole, driver.Whole, "_c_" + testUUID + "-lock-"},
		{DialectCurator, 1, driver.Whole, "_c_" + testUUID + "-__READ__"},
		{DialectCurator, 2, 5, "_c_" + testUUID + "-2of5-lock-"},
		{DialectCurator, 1, 1, "_c_" + testUUID + "-1of1-lock-"},
		{DialectCuratorRW, driver.Whole, driver.Whole, "_c_" + testUUID + "-__WRIT__"},
		{DialectCuratorRW, 1, driver.Whole, "_c_" + testUUID + "-__READ__"},
		{DialectKazoo, driver.Whole, driver.Whole, hex + "__lock__"},
		{DialectKazoo, 1, driver.Whole, hex + "__rlock__"},
		{DialectKazoo, 2, 5, hex + "-2of5__lock__"},
	} {
		got := c.dialect.prefix(&driver.Request{ID: "test", Units: c.units, Capacity: c.capacity})
		if got != c.want {
			t.Errorf("%s, %d of %d: %q, want %q", c.dialect, c.units, c.capacity, got, c.want)
		}
		e, ok := c.dialect.parse(got + "0000000042")
		if !ok || e.units != c.units || e.capacity != c.capacity || e.seq != 42 || e.guid != guidOf("test") {
			t.Errorf("%s: %q is read as %+v, %t", c.dialect, got, e, ok)
		}
	}
}

// Names that other libraries write, taken from their sources, and what is none of ours.
func TestParse(t *testing.T) {
	t.Parallel()
	whole := driver.Whole
	for _, c := range []struct {
		dialect         Dialect
		name            string
		units, capacity int64 // 0: not an entry
		seq             int32
	}{
		// Curator: ProtectedMode's "_c_" + UUID + "-", the lock's name, and the number.
		{DialectCurator, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6-lock-0000000007", whole, whole, 7},
		{DialectCurator, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6-__READ__0000000007", 1, whole, 7},
		{DialectCurator, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6-__WRIT__0000000007", whole, whole, 7},
		{DialectCuratorRW, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6-lock-0000000007", whole, whole, 7},
		// go-zookeeper: the same with bare hex digits.
		{DialectCurator, "_c_0d1e2f3a4b5c6d7e8f90a1b2c3d4e5f6-lock-0000000007", whole, whole, 7},
		{DialectKazoo, "0d1e2f3a4b5c6d7e8f90a1b2c3d4e5f6__lock__0000000007", whole, whole, 7},
		{DialectKazoo, "0d1e2f3a4b5c6d7e8f90a1b2c3d4e5f6__rlock__0000000007", 1, whole, 7},
		// The counter is a signed int, printed by %010d.
		{DialectCurator, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6-lock-2147483647", whole, whole, 1<<31 - 1},
		{DialectCurator, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6-lock--2147483648", whole, whole, -1 << 31},
		{DialectCurator, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6-lock--000000001", whole, whole, -1},
		{DialectCurator, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6-2of5-lock--000000001", 2, 5, -1},

		{DialectCurator, "", 0, 0, 0},
		{DialectCurator, "0000000001", 0, 0, 0},
		{DialectCurator, "lock-0000000001", 0, 0, 0},
		{DialectCurator, "_c_", 0, 0, 0},
		{DialectCurator, "_c_-lock-0000000001", 0, 0, 0},
		{DialectCurator, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6-lock-000000001", 0, 0, 0},   // nine digits
		{DialectCurator, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6-lock-00000000001", 0, 0, 0}, // eleven
		{DialectCurator, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6-lock-2147483648", 0, 0, 0},  // no int
		{DialectCurator, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5fg-lock-0000000001", 0, 0, 0},
		{DialectCurator, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6-lease-0000000001", 0, 0, 0}, // its semaphore
		{DialectCurator, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6-6of5-lock-0000000001", 0, 0, 0},
		{DialectCurator, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6-0of5-lock-0000000001", 0, 0, 0},
		{DialectCurator, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6-02of5-lock-0000000001", 0, 0, 0},
		{DialectCurator, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6-1of99999999999-lock-0000000001", 0, 0, 0},
		{DialectCurator, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6-2of5-__READ__0000000001", 0, 0, 0},
		{DialectCurator, "0d1e2f3a4b5c6d7e8f90a1b2c3d4e5f6__lock__0000000007", 0, 0, 0}, // the other dialect
		{DialectKazoo, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6-lock-0000000007", 0, 0, 0},
		{DialectKazoo, "0d1e2f3a4b5c6d7e8f90a1b2c3d4e5f6", 0, 0, 0}, // kazoo's semaphore
	} {
		e, ok := c.dialect.parse(c.name)
		if ok != (c.units != 0) {
			t.Errorf("%s: %q is an entry: %t", c.dialect, c.name, ok)
		} else if ok && (e.units != c.units || e.capacity != c.capacity || e.seq != c.seq || e.name != c.name) {
			t.Errorf("%s: %q is read as %+v", c.dialect, c.name, e)
		}
	}
}

// curatorOrder is how Curator's LockInternals sorts: by what follows the last occurrence
// of the lock's name, as text.
func curatorOrder(names []string, lockName string) []string {
	key := func(s string) string {
		if i := strings.LastIndex(s, lockName); i >= 0 {
			return s[i+len(lockName):]
		}
		return s
	}
	return slices.SortedFunc(slices.Values(names), func(a, b string) int { return strings.Compare(key(a), key(b)) })
}

// kazooOrder is how kazoo's Lock finds its contenders: by a pattern at the end.
func kazooOrder(names []string) []string {
	contender := regexp.MustCompile(`(?:__lock__|__rlock__)(-?\d{10})$`)
	var found []string
	for _, n := range names {
		if contender.MatchString(n) {
			found = append(found, n)
		}
	}
	return slices.SortedFunc(slices.Values(found), func(a, b string) int {
		return strings.Compare(contender.FindStringSubmatch(a)[1], contender.FindStringSubmatch(b)[1])
	})
}

// The other libraries put our entries, of every kind they can meet, and their own into the
// order in which we do: so they exclude us and we them.
func TestOthersOrder(t *testing.T) {
	t.Parallel()
	type kind struct{ units, capacity int64 }
	whole, reader, permits := kind{driver.Whole, driver.Whole}, kind{1, driver.Whole}, kind{2, 5}
	for _, c := range []struct {
		dialect Dialect
		kinds   []kind
		foreign string
		order   func([]string) []string
	}{
		{DialectCurator, []kind{whole, permits}, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6-lock-", func(n []string) []string { return curatorOrder(n, "lock-") }},
		{DialectCuratorRW, []kind{whole}, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6-__WRIT__", func(n []string) []string { return curatorOrder(n, "__WRIT__") }},
		{DialectCuratorRW, []kind{reader}, "_c_0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6-__READ__", func(n []string) []string { return curatorOrder(n, "__READ__") }},
		{DialectKazoo, []kind{whole, reader, permits}, "0d1e2f3a4b5c6d7e8f90a1b2c3d4e5f6__lock__", kazooOrder},
	} {
		var names []string
		for i := range 40 {
			k := c.kinds[i%len(c.kinds)]
			prefix := c.dialect.prefix(&driver.Request{ID: fmt.Sprint(rand.Int()), Units: k.units, Capacity: k.capacity})
			if i%3 == 0 {
				prefix = c.foreign
			}
			names = append(names, fmt.Sprintf("%s%010d", prefix, 5+7*i))
		}
		shuffled := slices.Clone(names)
		rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		var ours []string
		for _, e := range c.dialect.parseAll(shuffled) {
			ours = append(ours, e.name)
		}
		if !slices.Equal(ours, names) {
			t.Errorf("%s: we order %q", c.dialect, ours)
		}
		if theirs := c.order(shuffled); !slices.Equal(theirs, names) {
			t.Errorf("%s: they order %q", c.dialect, theirs)
		}
	}
}

// Numbers grow past 2^31 by turning negative, and past 2^32 by starting again.
func TestOrderAcrossWrap(t *testing.T) {
	t.Parallel()
	for _, start := range []int32{0, 1<<31 - 3, -3, -1 << 31} {
		var names []string
		for i := range int32(6) {
			names = append(names, fmt.Sprintf("_c_%s-lock-%010d", testUUID, start+i))
		}
		for at, mine := range names {
			ahead, _, found := DialectCurator.ahead([]string{names[4], names[1], "garbage", names[5], names[0], names[3], names[2]}, mine, false)
			var got []string
			for _, c := range ahead {
				got = append(got, c.name)
			}
			if !found || !slices.Equal(got, names[:at]) {
				t.Errorf("ahead of %s: %q, found %t", mine, got, found)
			}
		}
	}
	if _, _, found := DialectCurator.ahead(nil, "_c_"+testUUID+"-lock-0000000001", false); found {
		t.Error("found in nothing")
	}
}

// Every name is ignored, or read with valid units.
func FuzzParse(f *testing.F) {
	f.Add("_c_" + testUUID + "-2of5-lock-0000000001")
	f.Add(strings.ReplaceAll(testUUID, "-", "") + "__rlock__-000000001")
	f.Fuzz(func(t *testing.T, name string) {
		for _, d := range []Dialect{DialectCurator, DialectCuratorRW, DialectKazoo} {
			c, ok := d.parse(name)
			if ok && (c.units < 1 || c.units > c.capacity || c.capacity > driver.Whole || c.name != name) {
				t.Errorf("%s: %q is read as %+v", d, name, c)
			}
		}
	})
}

func TestPaths(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ root, name, want string }{
		{"/hasp", "a", "/hasp/a"},
		{"/hasp", "a/b", "/hasp/a%2fb"},
		{"/hasp", "..", "/hasp/%2e."},
		{"/", "member-123", "/member-123"},
		{"/x/y", "A", "/x/y/%41"},
		{"/", "zookeeper", "/zookeeper"},
	} {
		o := &Options{Root: c.root}
		got, err := o.path(c.name)
		if err != nil || got != c.want {
			t.Errorf("%q under %s: %q, %v; want %q", c.name, c.root, got, err, c.want)
		}
	}
	long := strings.Repeat("\u00c9", 256)
	o := &Options{Root: "/hasp"}
	got, err := o.path(long)
	if name, ok := o.lockName(strings.TrimPrefix(got, "/hasp/")); err != nil || !ok || name != long {
		t.Errorf("the longest name comes back as %q, %t, %v", name, ok, err)
	}
	plain := &Options{Root: "/Locks", PlainNames: true}
	if got, err := plain.path("Member-123 \u00e9"); err != nil || got != "/Locks/Member-123 \u00e9" {
		t.Errorf("plain: %q, %v", got, err)
	}
	for _, bad := range []string{"a/b", ".", "..", "/", "x\n", "\ufff5", "zookeeper"} {
		if _, err := plain.path(bad); !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("plain %q: %v", bad, err)
		}
	}
}

// Without those between the oldest and the nearest the decision is the same, and so is the
// refusal of another kind, wherever it stands.
func TestAheadOfWhole(t *testing.T) {
	t.Parallel()
	for _, d := range []Dialect{DialectCurator, DialectCuratorRW, DialectKazoo} {
		for seed := range uint64(500) {
			rng := rand.New(rand.NewPCG(seed, 1))
			capacity := []int64{driver.Whole, 3}[rng.IntN(2)]
			me := driver.Request{ID: "me", Units: capacity, Capacity: capacity}
			at := rng.Uint32() // the counter may have come around
			name := func(r driver.Request, i int) string { return d.prefix(&r) + fmt.Sprintf("%010d", int32(at+uint32(i))) }
			n := rng.IntN(12)
			mine := name(me, n)
			names := []string{mine, name(driver.Request{ID: "behind", Units: 1, Capacity: 9}, n+1), "garbage-0000000001"}
			for i := range n {
				r := driver.Request{ID: fmt.Sprint(i), Units: 1 + rng.Int64N(3), Capacity: capacity}
				if rng.IntN(3) > 0 {
					r.Units = capacity
				}
				if rng.IntN(20) == 0 {
					r = driver.Request{ID: r.ID, Units: 7, Capacity: 7}
				}
				names = append(names, name(r, i))
			}
			rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			all, _, found := d.ahead(names, mine, false)
			few, between, foundHere := d.ahead(names, mine, true)
			kind, kindHere := driver.CheckKind(entries(all), me), driver.CheckKind(entries(few), me)
			if !found || !foundHere || len(all) != n || kind == nil && len(few)+between != n || (kind == nil) != (kindHere == nil) {
				t.Fatalf("%+v ahead of %s: %v, with all %v", few, mine, kindHere, kind)
			}
			want := all
			if n > 2 {
				want = []child{all[0], all[n-1]}
			}
			if kind == nil && !slices.Equal(few, want) {
				t.Fatalf("ahead of %s: %v, with all %v", mine, few, all)
			}
		}
	}
}
