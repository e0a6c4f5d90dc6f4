package top

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/memlock"
)

// press presses keys, a word or a name such as "enter".
func press(t *testing.T, s *screen, keys ...string) {
	t.Helper()
	names := map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "up": tea.KeyUp, "down": tea.KeyDown, "backspace": tea.KeyBackspace, "end": tea.KeyEnd, "pgdown": tea.KeyPgDown}
	for _, k := range keys {
		msgs := []tea.Msg{tea.KeyPressMsg{Code: names[k]}}
		if names[k] == 0 {
			msgs = nil
			for _, r := range k {
				msgs = append(msgs, tea.KeyPressMsg{Code: r, Text: string(r)})
			}
		}
		for _, m := range msgs {
			if _, cmd := s.Update(m); cmd != nil {
				s.Update(cmd())
			}
		}
	}
}

// text returns the screen without the marks. No line is wider than the screen, and there are no more than fit.
func text(t *testing.T, s *screen) string {
	t.Helper()
	lines := s.lines()
	if len(lines) > s.height {
		t.Errorf("%d lines of %d", len(lines), s.height)
	}
	for i, line := range lines {
		if n := ansi.StringWidth(line); n > s.width {
			t.Errorf("line %d has %d cells of %d: %q", i, n, s.width, line)
		}
	}
	return ansi.Strip(strings.Join(lines, "\n"))
}

func want(t *testing.T, s *screen, parts ...string) {
	t.Helper()
	got := text(t, s)
	for _, p := range parts {
		if !strings.Contains(got, p) {
			t.Errorf("no %q in\n%s", p, got)
		}
	}
}

// over is a screen over a real store in memory.
func over(t *testing.T) (*screen, *hasp.Client) {
	t.Helper()
	c, err := hasp.New(memlock.New().Backend())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	s := &screen{
		ctx: t.Context(), watch: &Watch{Client: c, Bound: time.Minute}, width: 80, height: 24,
		Options: Options{Clean: func(text string) string { return strings.Map(visible, text) }},
	}
	return s, c
}

func visible(r rune) rune {
	if r < ' ' {
		return '.'
	}
	return r
}

func (s *screen) refresh() { s.Update(s.lookOnce()) }

func TestScreen(t *testing.T) {
	s, c := over(t)
	want(t, s, "asking the store")
	held, err := c.Mutex("b", hasp.Note("the upgrade")).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	waiting, stop := context.WithCancel(t.Context())
	defer stop()
	go c.Mutex("b", hasp.Note("the backup")).Lock(waiting)
	if _, err := c.Mutex("a").Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	for s.look.Waits == 0 {
		s.refresh()
	}
	want(t, s, "2 names, 2 hold, 1 wait", "the upgrade, ")
	if rows := s.rows(); !slices.Equal(rows, []string{"b", "a"}) {
		t.Errorf("by queue: %q", rows)
	}
	press(t, s, "n")
	if rows := s.rows(); !slices.Equal(rows, []string{"a", "b"}) {
		t.Errorf("by name: %q", rows)
	}
	want(t, s, "by name;")

	press(t, s, "a")
	want(t, s, "open a queue first")
	press(t, s, "down", "enter")
	want(t, s, "b: 1 hold, 1 wait", "holds", "waits", "the backup, ")
	press(t, s, "e", "no", "enter", "n")
	want(t, s, "nothing was done")
	press(t, s, "e", "enter") // a reason is required
	want(t, s, "Why? _")
	press(t, s, "in the way!", "backspace", "enter")
	want(t, s, "y or n? The reason: in the way")
	if !held.Held() {
		t.Fatal("evicted without a confirmation")
	}
	press(t, s, "y")
	want(t, s, `took "b" from `)
	<-held.Lost()
	if e, err := c.LastEviction(t.Context(), "b"); err != nil || e == nil || e.Why != "in the way" {
		t.Errorf("%+v, %v", e, err)
	}
	press(t, s, "esc")
	if s.current() != "b" {
		t.Errorf("back at %q", s.current())
	}
}

// A request for a queue that has emptied meanwhile asks for nothing; one that is under way can be
// withdrawn, and a second one is not made beside it.
func TestAsk(t *testing.T) {
	s, c := over(t)
	asked := make(chan string, 9)
	s.Ask = func(ctx context.Context, q hasp.Queue, reason string) error {
		asked <- reason
		<-ctx.Done()
		return ctx.Err()
	}
	l, err := c.Mutex("a").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.refresh()
	press(t, s, "enter", "a")
	s.Update(tea.PasteMsg{Content: "pasted\n"})
	press(t, s, "enter")
	want(t, s, "y or n? The reason: pasted")
	_, cmd := s.Update(tea.KeyPressMsg{Code: 'y', Text: "y"})
	end := make(chan tea.Msg, 1)
	go func() { end <- cmd() }()
	if got := <-asked; got != "pasted" {
		t.Errorf("asked because of %q", got)
	}
	press(t, s, "a")
	s.Update(<-end)
	want(t, s, "the request is withdrawn")

	press(t, s, "a", "why", "enter")
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.refresh()
	press(t, s, "y")
	want(t, s, `"a" is free`)
	if len(asked) != 0 {
		t.Error("asked for a free lock")
	}
}

// The question is shown also if names, owners and reasons are longer than the screen.
func TestLongReason(t *testing.T) {
	s, c := over(t)
	if _, err := c.Mutex(strings.Repeat("long ", 30), hasp.Note(strings.Repeat("note ", 30))).Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.refresh()
	press(t, s, "enter", "e", strings.Repeat("reason ", 20)+"end")
	want(t, s, "Why? …", "end_")
	press(t, s, "enter")
	want(t, s, `Take "long `, "y or n? The reason: reason")
}

func TestSortsByTimes(t *testing.T) {
	now := time.Now()
	entry := func(age time.Duration) []hasp.Entry { return []hasp.Entry{{Since: now.Add(-age)}} }
	locks := []Lock{
		{Queue: hasp.Queue{Name: "long hold", Holders: entry(time.Hour), Waiters: entry(time.Second)}},
		{Queue: hasp.Queue{Name: "long wait", Holders: entry(time.Minute), Waiters: entry(time.Minute)}},
	}
	for o, want := range map[order]string{byHold: "long hold", byWait: "long wait", byName: "long hold"} {
		o.sort(locks, now)
		if locks[0].Name != want {
			t.Errorf("by %s: %q first", o, locks[0].Name)
		}
	}
}

// An outage leaves the last look on the screen, with its age, until the store is back.
func TestOutage(t *testing.T) {
	s, _ := over(t)
	s.Update(looked{err: errors.New("connection refused")})
	want(t, s, "no answer: connection refused")
	s.refresh()
	s.Update(looked{err: errors.New("connection refused")})
	want(t, s, "0 names", "no answer for ", " old: connection refused")
	s.refresh()
	if strings.Contains(text(t, s), "no answer") {
		t.Error("it is over")
	}
}

// With all names and sizes, no line is broken, and the selected row is shown.
func TestSizes(t *testing.T) {
	s, _ := over(t)
	var l Look
	for i := range 300 {
		name := fmt.Sprintf("名前-%03d-\x1b[31m\n%s", i, strings.Repeat("長", i%50))
		l.Locks = append(l.Locks, Lock{Queue: hasp.Queue{Name: name, Holders: []hasp.Entry{{Since: time.Now()}}}})
	}
	s.Update(looked{look: l})
	press(t, s, "n")
	for _, size := range [][2]int{{80, 24}, {200, 60}, {20, 6}, {1, 1}, {5, 3}, {80, 1000}} {
		s.Update(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
		for range 4 {
			press(t, s, "pgdown")
			text(t, s)
		}
		press(t, s, "end")
		if got := text(t, s); size[1] > 6 && !strings.Contains(got, "名前-299") {
			t.Errorf("at %v the last row is not shown:\n%s", size, got)
		}
		press(t, s, "enter")
		text(t, s)
		press(t, s, "e", "why", "enter")
		text(t, s)
		press(t, s, "esc", "esc")
	}
}

// Names that are too long are told apart by their ends, also where a character takes two cells.
func TestLongNames(t *testing.T) {
	s, c := over(t)
	for _, name := range []string{"services/payments/nightly-report/2026-11-24", "services/payments/nightly-report/2026-11-25", "サービス/支払い/夜間レポート/二〇二六"} {
		lease, err := c.Mutex(name).TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer lease.Unlock()
	}
	s.refresh()
	want(t, s, "services/…26-11-24  ", "services/…26-11-25  ", "サービス/…二〇二六  ")
	s.width = 200
	want(t, s, "services/payments/nightly-report/2026-11-24  ")
}

func BenchmarkViewOf10000(b *testing.B) {
	s := &screen{width: 120, height: 50, looked: true, Options: Options{Clean: func(text string) string { return text }}}
	for i := range 10000 {
		s.look.Locks = append(s.look.Locks, Lock{Queue: hasp.Queue{Name: fmt.Sprint("name-", i), Holders: []hasp.Entry{{Since: time.Now()}}}})
	}
	for b.Loop() {
		s.move(1)
		s.View()
	}
}
