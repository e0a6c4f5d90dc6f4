package drivertest

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// process is a child of the suite: see worker.
type process struct {
	env    *env
	cmd    *exec.Cmd
	orders *json.Encoder
	heard  chan report // closed when the child's output ends
	words  bytes.Buffer
	gone   sync.Once
}

// process starts a child with a client on the store.
func (e *env) process(ttl time.Duration) *process {
	e.Helper()
	self, err := os.Executable()
	if err != nil {
		e.Fatal(err)
	}
	set, err := json.Marshal(setting{URL: e.h.URL, TTL: ttl})
	if err != nil {
		e.Fatal(err)
	}
	// If TestMain does not call Main, the child finds no test to run, and ends.
	p := &process{env: e, cmd: exec.Command(self, "-test.run=^$"), heard: make(chan report, 64)}
	p.cmd.Env = append(os.Environ(), childEnv+"="+string(set))
	p.cmd.Stderr = &p.words
	in, err := p.cmd.StdinPipe()
	if err != nil {
		e.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		e.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		e.Fatal(err)
	}
	p.orders = json.NewEncoder(in)
	go p.listen(out)
	e.Cleanup(func() {
		in.Close()
		p.kill()
	})
	p.hears("ready")
	return p
}

func (p *process) listen(out io.Reader) {
	defer close(p.heard)
	for reports := json.NewDecoder(out); ; {
		var r report
		if reports.Decode(&r) != nil {
			return
		}
		p.heard <- r
	}
}

func (p *process) do(o order) {
	p.env.Helper()
	if err := p.orders.Encode(o); err != nil {
		p.env.Fatalf("order a child to %s: %v", o.Do, err)
	}
}

// hears waits for an event and returns it; events before it may be waiting and requeued.
func (p *process) hears(event string) report {
	p.env.Helper()
	timeout := time.After(p.env.patience())
	for {
		select {
		case r, ok := <-p.heard:
			switch {
			case !ok:
				p.kill()
				p.env.Fatalf("the child ended without saying %q (does TestMain call drivertest.Main?): %s", event, strings.TrimSpace(p.words.String()))
			case r.Event == event:
				return r
			case r.Event != "waiting" && r.Event != "requeued":
				p.slow(r)
				p.env.Fatalf("the child says %+v, and not %q", r, event)
			}
		case <-timeout:
			p.env.Fatalf("the child never said %q", event)
		}
	}
}

// quiet fails if the child has reported this event.
func (p *process) quiet(event, why string) {
	p.env.Helper()
	for {
		select {
		case r, ok := <-p.heard:
			if !ok {
				return
			}
			if r.Event == event {
				p.slow(r)
				p.env.Fatalf("%s: yet the child says %+v", why, r)
			}
		default:
			return
		}
	}
}

// slow records it if a child reports that its session has expired under it, or that its release had
// no answer for a TTL.
func (p *process) slow(r report) {
	if (r.Lost || r.Ended || r.Unknown) && p.env.trial != nil {
		p.env.trial.tooSlow()
	}
}

// asked asks whether the child still holds, and records it if it has lost what it held.
func (p *process) asked() {
	p.env.Helper()
	p.do(order{Do: "held"})
	p.slow(report{Lost: !p.hears("answer").Held})
}

func (p *process) signal(s os.Signal) {
	p.env.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.env.Fatalf("signal %s: %v", s, err)
	}
}

// kill is SIGKILL: nothing of the child runs any more, its clean-up included.
func (p *process) kill() {
	p.gone.Do(func() {
		_ = p.cmd.Process.Kill() // it may have ended by itself
		_ = p.cmd.Wait()         // "signal: killed" is expected
	})
}
