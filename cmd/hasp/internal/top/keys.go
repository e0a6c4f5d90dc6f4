package top

import (
	"fmt"
	"slices"
	"unicode"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/hasplock/hasp"
)

// action is a request or an eviction that the user is about to make: first the reason, then yes or no.
type action struct {
	evict  bool
	name   string
	entry  hasp.Entry
	reason []rune
	sure   bool // the reason is complete: yes or no?
}

// reasonMost is how long a reason may be, in characters: hasp takes 1024 bytes.
const reasonMost = 200

// key does what a key says.
func (s *screen) key(k tea.KeyPressMsg) tea.Cmd {
	if k.String() == "ctrl+c" {
		return tea.Quit
	}
	if s.action != nil {
		return s.actionKey(k)
	}
	s.status = ""
	switch k.String() {
	case "q":
		return tea.Quit
	case "up", "k":
		s.move(-1)
	case "down", "j":
		s.move(1)
	case "pgup":
		s.move(-s.page())
	case "pgdown":
		s.move(s.page())
	case "home", "g":
		s.move(-len(s.rows()))
	case "end", "G":
		s.move(len(s.rows()))
	case "u", "w", "h", "n":
		s.order = map[string]order{"u": byQueue, "w": byWait, "h": byHold, "n": byName}[k.String()]
		s.order.sort(s.look.Locks, s.look.Time)
	case "enter":
		if name := s.current(); s.opened == "" && name != "" {
			s.opened, s.selected, s.first = name, "", 0
		}
	case "esc", "backspace":
		if s.opened != "" {
			s.selected, s.opened, s.first = s.opened, "", 0
		}
	case "a":
		if s.withdraw != nil {
			s.withdraw()
			return nil
		}
		s.begin(false)
	case "e":
		s.begin(true)
	}
	return nil
}

// current is the selected row, or the first.
func (s *screen) current() string {
	rows := s.rows()
	switch {
	case slices.Contains(rows, s.selected):
		return s.selected
	case len(rows) > 0:
		return rows[0]
	}
	return ""
}

func (s *screen) move(by int) {
	rows := s.rows()
	if len(rows) == 0 {
		return
	}
	at := slices.Index(rows, s.current()) + by
	s.selected = rows[max(0, min(at, len(rows)-1))]
}

// begin starts an action on the opened queue.
func (s *screen) begin(evict bool) {
	if s.opened == "" {
		s.status = "open a queue first: Enter"
		return
	}
	e, ok := s.entry()
	if !ok {
		s.status = "no entry is left"
		return
	}
	s.action = &action{evict: evict, name: s.opened, entry: e}
}

func (s *screen) actionKey(k tea.KeyPressMsg) tea.Cmd {
	a := s.action
	switch {
	case k.String() == "esc", a.sure && k.String() == "n":
		s.action, s.status = nil, "nothing was done"
	case a.sure && k.String() == "y":
		s.action = nil
		if a.evict {
			return s.evict(a.name, a.entry, string(a.reason))
		}
		q, there := s.queue()
		if !there { // by now
			s.status = fmt.Sprintf("%q is free", s.Clean(a.name))
			return nil
		}
		return s.ask(q, string(a.reason))
	case a.sure:
	case k.String() == "enter":
		a.sure = len(a.reason) > 0
	case k.String() == "backspace":
		a.reason = a.reason[:max(0, len(a.reason)-1)]
	default:
		a.add(k.Text)
	}
	return nil
}

// add takes what is typed or pasted into the reason.
func (a *action) add(text string) {
	for _, r := range text {
		if unicode.IsPrint(r) && len(a.reason) < reasonMost {
			a.reason = append(a.reason, r)
		}
	}
}

// prompt is the first line of an action: what is about to be done, and to whom.
func (s *screen) prompt() string {
	a := s.action
	if a.evict {
		return fmt.Sprintf("Take %q away from %s.", s.Clean(a.name), s.Clean(a.entry.Owner.String()))
	}
	return fmt.Sprintf("Ask the holders of %q for it.", s.Clean(a.name))
}

// question is the second one. Of a long reason its end is shown while it is typed, and its beginning with
// the question whether to do it.
func (s *screen) question() string {
	a := s.action
	if a.sure {
		return fmt.Sprintf("y or n? The reason: %s", string(a.reason))
	}
	reason := string(a.reason)
	reason = ansi.TruncateLeft(reason, max(0, ansi.StringWidth(reason)-max(0, s.width-30)), "…")
	return fmt.Sprintf("Why? %s_   (Enter, or Esc)", reason)
}
