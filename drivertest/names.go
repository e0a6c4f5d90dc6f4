package drivertest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

var nameTests = []test{
	{name: "Traps", run: testNameTraps},
	{name: "Random", run: testNamesRandom},
	{name: "Listed", needs: needsNames, run: testNamesListed},
}

// nameTraps are names that some library or store has confused: by case, by prefix, by length, by
// separator, by escape, by normal form, or with its internal names.
func nameTraps() []string {
	long := strings.Repeat("n", 511)
	names := []string{
		"a/b", "a/", "a", "A", "a%2Fb", "a%2fb", "../x", ".", "..", "...", "/", "//", "/a", "{x}", "x", "a}b{c", "{}", "}{",
		" x", "x ", " ", "\t", "x\n", "x\r\n", "x'; DROP", "x\";--", "`x`", "lock-0000000001", "_c_", "_c_-lock-0000000001",
		"x/1", "x/", "x:1", "x%", "x_", "x*", "x?", "x[a]", "\\", "\\x", "%", "%%", "%61", "~", "~x", "-", "--", "-rf", "$x", "${x}", "#x",
		"\u00e9", "e\u0301", "\u212b", "\u00c5", "ss", "\u00df", "\u0131", "i", "I", "\u200b", "x\u200b", "\ufeffx", "\U0001f512", "\u202ex",
		"con", "nul", "CON", "a.lock", ".lock", "tmp", "session", "\x01", "\x7f",
		strings.Repeat("k", 63), strings.Repeat("k", 64), strings.Repeat("k", 65), strings.Repeat("k", 255), strings.Repeat("k", 256),
		long + "1", long + "2", strings.ToUpper(long) + "1", long, strings.Repeat("/", 512), strings.Repeat("\u00e9", 256), strings.Repeat("\u00c9", 256),
	}
	// The encoded form of a name must not be mistaken for a name.
	for _, n := range slices.Clone(names) {
		if enc, _ := driver.EncodeName(n, 128); !slices.Contains(names, enc) {
			names = append(names, enc)
		}
	}
	return names
}

// S9, O2: the traps are names like any other, each a separate lock.
func testNameTraps(e *env) { e.independent(nameTraps()) }

// S9: so are a thousand random ones.
func testNamesRandom(e *env) {
	number := e.h.Names
	if number == 0 {
		number = 1000
	}
	names := map[string]bool{}
	for len(names) < number {
		// 8 runes are enough not to collide with another name; a few have the greatest length.
		n, length := "", 8+rand.N(12)
		if rand.N(20) == 0 {
			length = 512
		}
		for range length {
			r := rune(1 + rand.N(0xff))
			switch rand.N(4) {
			case 0:
				r = rune(1 + rand.N(utf8.MaxRune))
			case 1:
				r = rune(0x20 + rand.N(0x60))
			}
			if utf8.ValidRune(r) && len(n)+utf8.RuneLen(r) <= 512 {
				n += string(r)
			}
		}
		names[n] = true
	}
	atOnce := e.h.AtOnce
	if atOnce == 0 {
		atOnce = len(names)
	}
	for some := range slices.Chunk(slices.Collect(maps.Keys(names)), atOnce) {
		e.independent(some)
	}
}

// independent holds all names at once, and checks that each is shown and listed as it was given;
// then it releases every second, and checks that exactly the others are still held.
func (e *env) independent(names []string) {
	e.Helper()
	// Where each lock is renewed by a request, renewals would else take most of a busy machine's
	// time, and leases expire.
	holder, other := e.clientOn(e.h.Open(e), nil, 3*e.longTTL()), e.client()
	held := make([]*hasp.Lease, len(names))
	e.each(names, func(i int, name string) (err error) {
		held[i], err = holder.Mutex(name, hasp.Note(name)).TryLock(e.Context())
		return err
	})
	if e.Failed() {
		return
	}
	if needsNames(e) == "" {
		listed := e.listed("")
		for _, name := range names {
			if _, found := slices.BinarySearch(listed, name); !found {
				e.Errorf("name %q is held and not listed", name)
			}
		}
	}
	e.each(names, func(i int, name string) error {
		if i%2 == 0 {
			return held[i].Release(e.Context())
		}
		q, err := e.inspect(other, name)
		if err == nil && (q.Name != name || len(q.Holders) != 1 || len(q.Waiters) != 0 || q.Holders[0].ID != held[i].ID() || q.Holders[0].Owner.Note != name) {
			return fmt.Errorf("inspected: %+v; want the holder %s", q, held[i].ID())
		}
		return err
	})
	e.each(names, func(i int, name string) error {
		l, err := other.Mutex(name).TryLock(e.Context())
		switch {
		case i%2 == 0 && err != nil:
			return fmt.Errorf("it was released: %w", err)
		case i%2 == 0:
			return l.Release(e.Context())
		case err == nil:
			return errors.New("it is held, and was granted again")
		}
		return held[i].Release(e.Context())
	})
}

// inspect looks at a name until its holders have owners: some stores have them recorded a moment
// after the grant, which on a busy machine is longer than Inspect waits for it.
func (e *env) inspect(c *client, name string) (q hasp.Queue, err error) {
	e.comes(func() bool {
		q, err = c.Inspect(e.Context(), name)
		return err != nil || !slices.ContainsFunc(q.Holders, func(h hasp.Entry) bool { return h.Owner == hasp.Owner{} })
	})
	return q, err
}

// each runs fn for every name, several at a time: with a store in another process most of the time
// is waiting.
func (e *env) each(names []string, fn func(i int, name string) error) {
	e.Helper()
	next := make(chan int)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range next {
				if err := fn(i, names[i]); err != nil {
					e.Errorf("name %q: %v", names[i], err)
				}
			}
		})
	}
	for i := range names {
		next <- i
	}
	close(next)
	wg.Wait()
}

// S9: names are listed as they were given, by literal prefixes (no pattern of SQL or of a shell),
// and only while they are in use.
func testNamesListed(e *env) {
	root := e.name()
	c := e.clientOn(e.h.Open(e), nil, 3*e.longTTL())
	var names []string
	leases := map[string]*hasp.Lease{}
	for _, n := range nameTraps() {
		if n = root + n; len(n) > 512 {
			continue
		}
		names = append(names, n)
		leases[n] = e.must(c.Mutex(n).TryLock(e.ctx()))
	}
	starting := func(prefix string) []string {
		return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !strings.HasPrefix(n, prefix) })
	}
	for _, prefix := range []string{root, root + "x", root + "x%", root + "x_", root + "x*", root + "x[", root + "a/", root + "A", root + "\\", root + "%", root + "\u00e9", root + "absent"} {
		e.lists(prefix, starting(prefix))
	}
	for n := range e.client().Names(e.ctx(), root) {
		if !slices.Contains(names, n) {
			e.Errorf("listed %q", n)
		}
		break // must end the listing without an error or a panic
	}
	for n, l := range leases {
		e.release(l)
		names = slices.DeleteFunc(names, func(o string) bool { return o == n })
	}
	e.eventually("unused names no longer listed", func() bool { return len(e.listed(root)) == 0 })
}

func (e *env) lists(prefix string, want []string) {
	e.Helper()
	got := e.listed(prefix)
	want = slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		e.Errorf("names with prefix %q: %q, want %q", prefix, got, want)
	}
}

func (e *env) listed(prefix string) []string {
	e.Helper()
	var got []string
	for n, err := range e.client().Names(e.ctx(), prefix) {
		if e.once(err) != nil {
			e.Fatalf("names with prefix %q: %v", prefix, err)
		}
		got = append(got, n)
	}
	slices.Sort(got)
	return got
}
