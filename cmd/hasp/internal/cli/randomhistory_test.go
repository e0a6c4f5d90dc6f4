//go:build unix

package cli

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// span is a time in which an agent, or a command of hasp run, had something of a lock for certain.
type span struct {
	who, name string
	takes     int
	from, to  time.Time
}

// history has all that the agents of a program have done, and the faults.
type history struct {
	sync.Mutex
	began       time.Time
	spans       []span
	log, faults []string
	answers     map[string]int // by verb and code
}

func (h *history) had(s span) {
	if s.to.After(s.from) {
		h.Lock()
		h.spans = append(h.spans, s)
		h.Unlock()
	}
}

func (h *history) say(format string, args ...any) {
	h.Lock()
	defer h.Unlock()
	h.log = append(h.log, fmt.Sprintf("%7.3f ", time.Since(h.began).Seconds())+fmt.Sprintf(format, args...))
}

func (h *history) count(answer string) {
	h.Lock()
	h.answers[answer]++
	h.Unlock()
}

func (h *history) fault(kind, format string, args ...any) {
	text := kind + ": " + fmt.Sprintf(format, args...)
	h.say("FAULT %s", text)
	h.Lock()
	h.faults = append(h.faults, text)
	h.Unlock()
}

func (h *history) found(kind string) bool {
	h.Lock()
	defer h.Unlock()
	return slices.ContainsFunc(h.faults, func(text string) bool { return strings.HasPrefix(text, kind) })
}

// exclusion: whenever somebody begins to hold, all who hold have room.
func (h *history) exclusion() {
	h.Lock()
	all := slices.Clone(h.spans)
	h.Unlock()
	for _, s := range all {
		taken, who := 0, []string(nil)
		for _, o := range all {
			if o.name == s.name && !o.from.After(s.from) && o.to.After(s.from) {
				taken, who = taken+o.takes, append(who, fmt.Sprintf("%s from %.3f to %.3f", o.who, o.from.Sub(h.began).Seconds(), o.to.Sub(h.began).Seconds()))
			}
		}
		if taken > room(s.name) {
			h.fault("exclusion", "%d of %d of %q are held: %s", taken, room(s.name), s.name, strings.Join(who, ", "))
		}
	}
}
