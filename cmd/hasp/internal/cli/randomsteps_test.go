//go:build unix

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// step always draws the same number of times, so that a seed means about the same steps in
// each run.
func (a *actor) step() {
	r := a.rng
	what, w, limit, wait, some, which := r.IntN(100), wishes[r.IntN(len(wishes))], a.bound, "", r.IntN(2) == 0, r.IntN(6)
	name := w.names[r.IntN(len(w.names))]
	if has := a.requests(); which < 4 && len(has) > 0 { // what it has is met more often than what it has not
		name = has[which%len(has)].names[0]
		if what < 12 {
			w = has[which%len(has)].wish
		}
	}
	if r.IntN(8) == 0 {
		limit = time.Duration(5+r.IntN(250)) * time.Millisecond
	}
	if dies := time.Duration(r.IntN(200)) * time.Millisecond; r.IntN(25) == 0 {
		a.dies = dies + 1
	}
	if w := fmt.Sprintf(" --wait %dms", r.IntN(300)); some {
		wait = w
	}
	stay, give := time.Duration(r.IntN(60))*time.Millisecond, []string{name}
	if of := a.has[name]; of != nil && some {
		give = of.names
	}
	going := func() {}
	if d := time.Duration(r.IntN(300)) * time.Millisecond; r.IntN(12) == 0 {
		going = a.stop(d)
	}
	bounds := [2]time.Duration{}
	for i := range bounds {
		if d := time.Duration(50+r.IntN(300)) * time.Millisecond; r.IntN(6) == 0 {
			bounds[i] = d
		}
	}
	switch {
	case what < 32:
		a.ask(w, bounds[0], bounds[1], limit)
	case what < 52:
		a.who(limit, wait, name)
	case what < 60:
		a.who(limit, wait, "")
	case what < 70:
		a.release(limit, give...)
	case what < 74:
		a.release(limit)
	case what < 94:
		a.command(w, some, limit, stay)
	default:
		a.killHolder()
	}
	if going(); a.dead {
		a.end()
		a.start()
	}
}

// ask is hold --background: of the same, it answers what there is.
func (a *actor) ask(w wish, maxHold, maxWait, limit time.Duration) {
	met := a.requests(w.names...)
	same := len(met) == 1 && met[0].args == w.args
	next := &claim{wish: w, state: "unknown", maxHold: maxHold, maxWait: maxWait > 0, expires: a.expires, beside: len(a.requests()) > len(met)}
	if !same && slices.ContainsFunc(met, func(r *claim) bool { return r.state == "unknown" }) {
		return // which of both there is then, no answer tells
	}
	args := "hold --background --pid $PPID " + w.note()
	if a.dies > 0 { // $PPID of an orphan is the process that takes it over
		args = strings.Replace(args, "$PPID", strconv.Itoa(a.cmd.Process.Pid), 1)
	}
	for flag, d := range map[string]time.Duration{" --max-hold ": maxHold, " --max-wait ": maxWait} {
		if d > 0 {
			args += flag + d.String()
		}
	}
	r := a.call(limit, a.askCodes(next, met, same), args+" "+w.args)
	next.since = r.sent
	if killed := a.in("killed"); r.code == -1 && len(killed) > 0 { // this call may have been told of it
		a.untold = true
		a.forget(killed...)
		met = a.requests(w.names...)
	}
	switch told := len(r.states) > 0; {
	case r.code == -1 && len(met) == 0:
		a.add(next)
	case r.code == -1 && same && !met[0].certain():
		a.believed(met, r.sent)
		met[0].joins(next)
		met[0].state = "unknown"
	case r.code < 0:
	case r.code == 76 && !told:
		a.untold = false
		a.forget(a.in("killed")...)
		if same && (met[0].state == "over" && met[0].code != 76 || met[0].state == "waiting" && !met[0].certain()) {
			met[0].state = "unknown" // the end of the wait is dropped, unless the other was met first
		}
	case told && r.code != 76 && same && met[0].state != "over":
		if !met[0].certain() {
			met[0].joins(next)
		}
		a.learn(met[0], r.states[0], r.code, r.sent)
	case told && r.code != 76:
		a.forget(met...)
		a.add(next)
		a.learn(next, r.states[0], r.code, r.sent)
	case same:
		a.forget(met...)
	}
}

func (a *actor) who(limit time.Duration, wait, name string) {
	about := a.requests()
	if name != "" {
		about = a.requests(name)
	}
	codes := together(about, (*claim).codes)
	if name == "" && a.untold {
		codes = append(codes, 76)
	}
	r := a.call(limit, codes, "who --mine --json"+wait+" "+name)
	for _, s := range r.states {
		code := s.Exit
		if name != "" || r.code == 0 {
			code = r.code
		}
		if of := a.has[s.All()[0].Name]; of == nil {
			a.fault("mine", "%s is told of %q, and has not asked for it", a.name, s.Name)
		} else {
			a.learn(of, s, code, r.sent)
		}
	}
	for _, of := range about {
		if r.code >= 0 && of.state == "unknown" { // and not found
			a.forget(of)
		}
	}
}

// release gives back what there is of the names, or all. Of names that are held together all must be
// named.
func (a *actor) release(limit time.Duration, names ...string) {
	about := a.requests(names...)
	codes := together(about, (*claim).releaseCodes)
	if len(names) == 0 && a.untold {
		codes = append(codes, 76)
	}
	if len(names) == 1 && len(about) == 1 && len(about[0].names) > 1 && about[0].state != "killed" {
		if codes = []int{64}; about[0].state == "unknown" {
			codes = append(codes, 76)
		}
	}
	a.believed(about, time.Now())
	r := a.call(limit, codes, "release --mine "+strings.Join(names, " "))
	for _, of := range about {
		switch {
		case of.state == "killed" || r.code == -2 || r.code == 64:
		case r.code == -1:
			of.state = "unknown"
		default:
			a.forget(of)
		}
	}
}

// command is hasp run or try, whose command stays until its file is removed.
func (a *actor) command(w wish, try bool, limit, stay time.Duration) {
	codes, verb := []int{0, 75}, "try "
	if !try {
		codes, verb = append(codes, 69), "run --wait 300ms " // 69: the machine was too slow for that
		if len(a.has) > 0 {
			codes = append(codes, 78)
		}
	} else if a.expires {
		codes = append(codes, 69)
	}
	for _, of := range a.requests(w.names...) {
		if of.certain() && (of.state == "held" || len(of.names) == 1) && of.takes+w.takes > room(of.names[0]) {
			codes = slices.DeleteFunc(codes, func(code int) bool { return code == 0 })
		}
	}
	a.commands++
	file := filepath.Join(a.dir, fmt.Sprint(a.name, "-", a.commands))
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		panic(err)
	}
	began, ended := time.Now(), make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for _, err := os.Stat(file + ".in"); err != nil; _, err = os.Stat(file + ".in") {
			select {
			case <-ended:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
		from := time.Now()
		select {
		case <-ended: // killed
		case <-time.After(stay):
		}
		to := time.Now()
		if killed := began.Add(limit); killed.Before(to) {
			to = killed
		}
		for _, name := range w.names {
			a.had(span{a.name + " by " + verb, name, w.takes, from, to})
		}
		os.Remove(file)
	})
	a.call(limit, codes, fmt.Sprintf("%s%s -- sh -c ': >%s.in; while [ -e %[3]s ]; do sleep 0.01; done'", verb, w.args, file))
	close(ended)
	watch.Wait()
	os.Remove(file)
}
