package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/hasplock/hasp"
)

// headLines and footLines are around the rows.
const (
	headLines = 3
	footLines = 2
)

// page is how many rows fit.
func (s *screen) page() int { return max(1, s.height-headLines-footLines) }

// View draws the screen. Only the rows that fit are formatted: a store may have ten thousand names.
func (s *screen) View() tea.View {
	v := tea.NewView(strings.Join(s.lines(), "\n"))
	v.AltScreen = true
	return v
}

// lines are those of the screen, none of them wider than it.
func (s *screen) lines() []string {
	lines := []string{s.title(), ""}
	if s.opened == "" {
		lines = append(lines, s.list()...)
	} else {
		lines = append(lines, s.opening()...)
	}
	for len(lines) < s.height-footLines {
		lines = append(lines, "")
	}
	lines = append(lines[:max(0, min(len(lines), s.height-footLines))], s.news(), s.help())
	for i, line := range lines {
		lines[i] = ansi.Truncate(line, s.width, "…")
	}
	return lines[max(0, len(lines)-s.height):]
}

func (s *screen) title() string {
	if !s.looked {
		return "hasp top: asking the store"
	}
	l := s.look
	return fmt.Sprintf("%s  %s  %d names, %d hold, %d wait", l.Time.Format("15:04:05"), s.Clean(l.Store), l.Names, l.Held, l.Waits)
}

// news tells of an outage, of the action that is about to be made, or how the last one went.
func (s *screen) news() string {
	switch {
	case s.action != nil:
		return s.prompt()
	case s.failed != nil && s.looked:
		return fmt.Sprintf("no answer for %s, this is %s old: %s", brief(time.Since(s.failedSince)), brief(time.Since(s.look.Time)), s.Clean(s.failed.Error()))
	case s.failed != nil:
		return "no answer: " + s.Clean(s.failed.Error())
	}
	return s.status
}

func (s *screen) help() string {
	if s.action != nil {
		return s.question()
	}
	if s.opened != "" {
		return "Esc back  ↑↓ select  a ask the holders  e evict the entry  q quit"
	}
	return fmt.Sprintf("Enter open  ↑↓ select  by %s; by: u queue w wait h hold n name  q quit", s.order)
}

// list shows the names.
func (s *screen) list() []string {
	const columns = "%-*s  %-*s  %8s  %7s  %8s  %9s"
	wide := max(8, (s.width-44)/2)
	lines := []string{bold(fmt.Sprintf(columns, wide, "NAME", wide, "HOLDER", "HOLD", "WAITING", "WAIT", "CHANGES/S"))}
	current := s.current()
	for i := range s.visible() {
		l := s.look.Locks[i]
		holder := "-"
		if len(l.Holders) > 0 {
			holder = owner(l.Holders[0])
			if n := len(l.Holders) - 1; n > 0 {
				holder = fmt.Sprintf("%d more and %s", n, holder)
			}
		}
		line := fmt.Sprintf("%s  %s  %8s  %7d  %8s  %9.1f", s.nameCell(l.Name, wide), s.cell(holder, wide),
			age(l.Holders, s.look.Time), len(l.Waiters), age(l.Waiters, s.look.Time), l.Changes)
		lines = append(lines, s.mark(line, l.Name == current))
	}
	return lines
}

// opening shows one queue: who holds, who waits, and bars for how long they have waited.
func (s *screen) opening() []string {
	q, there := s.queue()
	lines := []string{bold(fmt.Sprintf("%s: %d hold, %d wait", s.Clean(q.Name), len(q.Holders), len(q.Waiters)))}
	if !there {
		return append(lines, "free: nothing is held or waited for")
	}
	all := entries(q)
	most := max(longest(q.Waiters, s.look.Time), time.Second)
	wide, current := max(10, s.width-44), s.current()
	for i := range s.visible() {
		e, state, bar := all[i], "holds", ""
		if i >= len(q.Holders) {
			state = "waits"
			bar = strings.Repeat("▇", int(20*min(longest(all[i:i+1], s.look.Time), most)/most))
		}
		line := fmt.Sprintf("%3d %s %s %8s  %s", i+1, state, s.cell(owner(e), wide), age(all[i:i+1], s.look.Time), bar)
		lines = append(lines, s.mark(line, e.ID == current))
	}
	return lines
}

// visible are the numbers of the rows that fit; the selected one is among them.
func (s *screen) visible() func(func(int) bool) {
	rows := s.rows()
	at, page := slices.Index(rows, s.current()), s.page()
	s.first = max(0, min(s.first, at, len(rows)-page), at-page+1)
	return func(yield func(int) bool) {
		for i := s.first; i < min(len(rows), s.first+page); i++ {
			if !yield(i) {
				return
			}
		}
	}
}

// cell is a text of that many cells; a character may take two.
func (s *screen) cell(text string, width int) string {
	text = ansi.Truncate(s.Clean(text), width, "…")
	return text + strings.Repeat(" ", max(0, width-ansi.StringWidth(text)))
}

// nameCell leaves out the middle of a name that is too long: the names of a store often begin alike, and end differently.
func (s *screen) nameCell(name string, width int) string {
	name = s.Clean(name)
	if over := ansi.StringWidth(name) - width; over > 0 {
		head := width / 2
		name = ansi.Truncate(name, head, "") + ansi.TruncateLeft(name, head+over+1, "…")
	}
	return s.cell(name, width)
}

// mark inverts the selected row over the whole width. There are no colours, for NO_COLOR and for all eyes.
func (s *screen) mark(line string, selected bool) string {
	if !selected {
		return line
	}
	line = ansi.Truncate(line, s.width, "…")
	return "\x1b[7m" + line + strings.Repeat(" ", max(0, s.width-ansi.StringWidth(line))) + "\x1b[0m"
}

func bold(text string) string { return "\x1b[1m" + text + "\x1b[0m" }

// owner begins with the note, which tells more to people and may be all that there is room for.
func owner(e hasp.Entry) string {
	note, rest := e.Owner.Note, e.Owner
	if note == "" {
		return rest.String()
	}
	rest.Note, rest.Program = "", ""
	return note + ", " + rest.String()
}

// age is how long ago the oldest entry has asked.
func age(entries []hasp.Entry, now time.Time) string {
	if a := longest(entries, now); a > 0 {
		return brief(a)
	}
	return "-"
}

// brief is a duration as people read it.
func brief(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	}
	return d.Round(time.Minute).String()
}
