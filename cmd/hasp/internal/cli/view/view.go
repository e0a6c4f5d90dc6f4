// Package view says things to people: who holds a lock and since when, tables, and other people's
// texts in a form that is safe for a terminal.
package view

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/hasplock/hasp"
)

// HeldBy describes who holds the lock:
//
//	"deploy" held by ana@web-3 pid 4121 (make deploy) since 14:02:11, 3m10s, token 88, 2 waiting
//
// since is when that holder asked for the lock, by its own clock: the only time that every store
// has. The waiters do not include me.
func HeldBy(q hasp.Queue, me func(hasp.Entry) bool, now time.Time) string {
	waiting := slices.DeleteFunc(slices.Clone(q.Waiters), me)
	if len(q.Holders) == 0 {
		if q.Quarantine > 0 {
			return fmt.Sprintf("%q is free, but the store may have forgotten locks, and grants none for another %s", Clean(q.Name), Brief(q.Quarantine))
		}
		if len(waiting) == 0 {
			return fmt.Sprintf("%q just became free", Clean(q.Name))
		}
		return fmt.Sprintf("%q is about to pass to %s, %d waiting", Clean(q.Name), Owner(waiting[0].Owner), len(waiting))
	}
	h := q.Holders[0]
	s := fmt.Sprintf("%q held by %s", Clean(q.Name), Owner(h.Owner))
	if n := len(q.Holders) - 1; n > 0 {
		s += fmt.Sprintf(" and %d more", n)
	}
	if !h.Since.IsZero() {
		s += fmt.Sprintf(" since %s, %s", Clock(h.Since, now), Brief(now.Sub(h.Since)))
	}
	s += CommaToken(h.Token)
	if over := Over(h, now); over != "" {
		s += ", " + over
	}
	if len(waiting) > 0 {
		s += fmt.Sprintf(", %d waiting", len(waiting))
	}
	return s
}

func Owner(o hasp.Owner) string {
	o.Note = Short(o.Note)
	return Clean(o.String())
}

// Short is the beginning of a text that another client has chosen, for a table or a line. JSON has
// all of it.
func Short(text string) string {
	const most = 60
	if r := []rune(text); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return text
}

// Asked says when an entry asked for the lock, and how long ago. For a holder that uses another
// library no store knows it.
func Asked(e hasp.Entry, now time.Time) (since, age string) {
	if e.Since.IsZero() {
		return "-", "-"
	}
	return Clock(e.Since, now), Brief(now.Sub(e.Since))
}

// Over says that a holder may be dead: "" if nothing says so.
func Over(h hasp.Entry, now time.Time) string {
	if h.LooksOver.IsZero() {
		return ""
	}
	return "looks over since " + Clock(h.LooksOver, now)
}

// Clock is the time of day, with the date if it is another day.
func Clock(t, now time.Time) string {
	t, now = t.Local(), now.Local()
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format("15:04:05")
	}
	return t.Format("2006-01-02 15:04:05")
}

// Brief is a duration as people read it: seconds are exact enough once there are some.
func Brief(d time.Duration) string {
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

func Token(token uint64) string {
	if token == 0 {
		return ""
	}
	return fmt.Sprintf(" (token %d)", token)
}

func CommaToken(token uint64) string {
	if token == 0 {
		return ""
	}
	return fmt.Sprintf(", token %d", token)
}

// Quote quotes an argument for a message, unless it could be a store's URL.
func Quote(s string) string {
	if strings.Contains(s, "://") || strings.Contains(s, "@") {
		return "(a URL or address, not shown)"
	}
	if len(s) > 80 {
		s = s[:80] + "..."
	}
	return strconv.Quote(s)
}

// Quietly is Quote without the quotes.
func Quietly(s string) string {
	if q := Quote(s); strings.HasPrefix(q, "(") {
		return q
	}
	return Clean(s)
}

// JSON is v on one line that is safe for a terminal, as Clean makes a text: what could move the
// cursor or turn the line around is escaped, and a program reads the same.
func JSON(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil || !bytes.ContainsFunc(b, hidden) {
		return b, err
	}
	var safe []byte
	for _, r := range string(b) {
		if !hidden(r) {
			safe = utf8.AppendRune(safe, r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			safe = fmt.Appendf(safe, `\u%04x`, unit)
		}
	}
	return safe, nil
}

// hidden is of a character that a terminal does not show as one; in JSON it stands in a string.
func hidden(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }

// Clean makes other people's text safe for a terminal: a note must not be able to move the cursor,
// set the title or forge a line.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// OneLine joins the lines of a message, and cleans it.
func OneLine(s string) string {
	return Clean(strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; "))
}

// Table is text in columns.
type Table struct {
	buf bytes.Buffer
	w   *tabwriter.Writer
}

// NewTable makes one with its heads.
func NewTable(heads ...string) *Table {
	t := &Table{}
	t.w = tabwriter.NewWriter(&t.buf, 0, 8, 2, ' ', 0)
	t.Row(heads...)
	return t
}

// Row adds a line. Writing to memory cannot fail.
func (t *Table) Row(cells ...string) {
	_, _ = fmt.Fprintln(t.w, strings.Join(cells, "\t"))
}

// String is the table so far.
func (t *Table) String() string {
	_ = t.w.Flush()
	return t.buf.String()
}

// Lock is one of several locks, as JSON tells of it.
type Lock struct {
	Name   string `json:"name"`
	Token  uint64 `json:"token,omitempty"`
	Holder string `json:"holder"`
}
