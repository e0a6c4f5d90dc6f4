package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hasplock/hasp"
)

// heldBy describes who holds the lock:
//
//	"deploy" held by ana@web-3 pid 4121 (make deploy) since 14:02:11, 3m10s, token 88, 2 waiting
//
// since is when that holder asked for the lock, by its own clock: the only time that every store
// has. The waiters do not include me.
func heldBy(q hasp.Queue, me func(hasp.Entry) bool, now time.Time) string {
	waiting := slices.DeleteFunc(slices.Clone(q.Waiters), me)
	if len(q.Holders) == 0 {
		if q.Quarantine > 0 {
			return fmt.Sprintf("%q is free, but the store may have forgotten locks, and grants none for another %s", clean(q.Name), brief(q.Quarantine))
		}
		if len(waiting) == 0 {
			return fmt.Sprintf("%q just became free", clean(q.Name))
		}
		return fmt.Sprintf("%q is about to pass to %s, %d waiting", clean(q.Name), ownerText(waiting[0].Owner), len(waiting))
	}
	h := q.Holders[0]
	s := fmt.Sprintf("%q held by %s", clean(q.Name), ownerText(h.Owner))
	if n := len(q.Holders) - 1; n > 0 {
		s += fmt.Sprintf(" and %d more", n)
	}
	if !h.Since.IsZero() {
		s += fmt.Sprintf(" since %s, %s", clock(h.Since, now), brief(now.Sub(h.Since)))
	}
	s += commaToken(h.Token)
	if len(waiting) > 0 {
		s += fmt.Sprintf(", %d waiting", len(waiting))
	}
	return s
}

func ownerText(o hasp.Owner) string {
	o.Note = short(o.Note)
	return clean(o.String())
}

// short is the beginning of a text that another client has chosen, for a table or a line. JSON has
// all of it.
func short(text string) string {
	const most = 60
	if r := []rune(text); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return text
}

// asked says when an entry asked for the lock, and how long ago. For a holder that uses another
// library no store knows it.
func asked(e hasp.Entry, now time.Time) (since, age string) {
	if e.Since.IsZero() {
		return "-", "-"
	}
	return clock(e.Since, now), brief(now.Sub(e.Since))
}

// clock is the time of day, with the date if it is another day.
func clock(t, now time.Time) string {
	t, now = t.Local(), now.Local()
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format("15:04:05")
	}
	return t.Format("2006-01-02 15:04:05")
}

// brief is a duration as people read it: seconds are exact enough once there are some.
func brief(d time.Duration) string {
	switch {
	case d < 0:
		return "0s" // two machines' clocks differ
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

func tokenText(token uint64) string {
	if token == 0 {
		return ""
	}
	return fmt.Sprintf(" (token %d)", token)
}

func commaToken(token uint64) string {
	if token == 0 {
		return ""
	}
	return fmt.Sprintf(", token %d", token)
}

// isMe recognises this process's entries, by process and host and not by id: during the wait the
// library has not reported the id yet.
func isMe(e hasp.Entry) bool {
	host, _ := os.Hostname()
	return e.Owner.PID == os.Getpid() && e.Owner.Host == host
}

// noteFor is the part of a command that others see: its base name and its first argument, if that
// is a plain word such as "deploy" in "make deploy". Never more: arguments may contain secrets, and
// every client that may lock can read the queue.
func noteFor(argv []string) string {
	note := filepath.Base(argv[0])
	if len(argv) > 1 && plainWord(argv[1]) {
		note += " " + argv[1]
	}
	return strings.ToValidUTF8(note[:min(len(note), 200)], "?")
}

// plainWord is lower-case letters with '-' or '_' between them, and short: few secrets are.
func plainWord(s string) bool {
	if s == "" || len(s) > 20 || s[0] == '-' || s[0] == '_' {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz-_") == ""
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

// reasonBound is how long a loss waits for its reason. The command has been told by then.
const reasonBound = 2 * time.Second

// explainLoss adds to a loss who has taken the lock away and why, where that is how it was lost and
// where the store keeps it. The store writes it in the same step as it removes the entry, so it is
// there when the loss is noticed.
func explainLoss(c *hasp.Client, g *commandLease, lost error) error {
	ctx, cancel := context.WithTimeout(context.Background(), reasonBound)
	defer cancel()
	for _, l := range g.leases {
		var how *hasp.LostError
		if !errors.As(l.Err(), &how) || how.Reason == hasp.ReasonExpired {
			continue
		}
		e, err := c.LastEviction(ctx, l.Name())
		if err != nil || e == nil || e.ID != l.ID() {
			continue // the loss itself is known, and the rest is for people
		}
		why := ""
		if e.Why != "" {
			why = ": " + clean(e.Why)
		}
		return fmt.Errorf("%w; %s took it away%s", lost, ownerText(e.By), why)
	}
	return lost
}
