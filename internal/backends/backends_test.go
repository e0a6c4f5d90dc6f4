package backends

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/serverprocess"
)

// instance is the common interface of every kind of server.
type instance interface {
	Kill() error
	Stop() error
	Restart() error
	Pause() error
	Resume() error
}

// ordeal takes a server through everything that tests will do to it. alive asks the
// server by its protocol within a second or so; write and read store something and find
// it again after a kill, which shows that Restart finds its data. With read nil the
// server keeps nothing. A write may be repeated.
func ordeal(t *testing.T, s instance, alive, write, read func() error) {
	t.Helper()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	must("ask the new server", patiently(alive))
	if read != nil {
		must("write", eventually(write))
	}

	must("kill", s.Kill())
	if alive() == nil {
		t.Fatal("a killed server answers")
	}
	must("kill what is dead", s.Kill())
	must("restart after a kill", s.Restart())
	must("ask after a kill", patiently(alive))
	if read != nil {
		must("read after a kill", patiently(read))
	}

	must("pause", s.Pause())
	if alive() == nil {
		t.Fatal("a paused server answers")
	}
	must("resume", s.Resume())
	must("ask after a pause", eventually(alive))

	must("stop", s.Stop())
	if alive() == nil {
		t.Fatal("a stopped server answers")
	}
	if s.Pause() == nil || s.Resume() == nil {
		t.Error("a stopped server was paused or resumed without an error")
	}
	must("restart after a stop", s.Restart())
	must("restart what runs", s.Restart())
	must("ask in the end", patiently(alive))
	if read != nil {
		must("read in the end", patiently(read))
	}
	must("pause before the test's end", s.Pause()) // must not hinder the clean-up
}

// patiently repeats a check that took a second to fail: the machine was busy. A failure that comes
// sooner counts: a server that does not serve yet refuses at once, and a wrong value is wrong.
func patiently(check func() error) error {
	for end := time.Now().Add(serverprocess.StartLimit); ; {
		began := time.Now()
		err := check()
		if err == nil || time.Since(began) < time.Second || time.Now().After(end) {
			return err
		}
	}
}

func TestStartFailureSaysWhy(t *testing.T) {
	need(t, redisServer)
	_, err := startRedis(RedisOptions{Config: []string{"no-such-setting 1"}})
	if err == nil || !strings.Contains(err.Error(), "no-such-setting") {
		t.Fatalf("a server that cannot start: %v, want an error with its log", err)
	}
}

func TestReservedPortsAreDistinct(t *testing.T) {
	need(t)
	seen := make(map[int]bool)
	for range 50 {
		ports, release, err := serverprocess.ReservePorts(4)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		for _, port := range ports {
			if seen[port] {
				t.Fatalf("port %d was given out twice", port)
			}
			seen[port] = true
			l, err := net.Listen("tcp", serverprocess.Local(port))
			if err != nil {
				t.Fatalf("a reserved port is not free: %v", err)
			}
			_ = l.Close()
		}
	}
}

// A port that is in use for a moment, by a process that has been forked and is not another program
// yet, keeps no server from starting.
func TestPortInUse(t *testing.T) {
	t.Parallel()
	r := StartRedis(t, RedisOptions{})
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", r.Addr)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(200*time.Millisecond, func() { l.Close() })
	if err := r.Restart(); err != nil {
		t.Error(err)
	}
}

// A server whose known fault ends it at its start is started again, as a service manager would do; one that another ends
// is not. So it is told when one ends later, by what it has said since it was started.
func TestKnownFault(t *testing.T) {
	t.Parallel()
	start := func(known string) (p *serverprocess.Process, end string, err error) {
		dir, err := serverprocess.NewDir("faulty", nil)
		if err != nil {
			t.Fatal(err)
		}
		p, err = serverprocess.Start(serverprocess.Command{
			Name: "faulty", Dir: dir, Fault: known, Stop: serverprocess.Terminate, Release: func() {},
			Argv: []string{"/bin/sh", "-c", `test -e again || { touch again; echo "Assertion x < y"; exit 134; }
				touch serves; until test -e end; do sleep 0.01; done; cat end; rm end; exit 1`},
			Ready: func() error {
				_, err := os.Stat(filepath.Join(dir, "serves"))
				return err
			},
		})
		return p, filepath.Join(dir, "end"), err
	}
	if _, _, err := start("Assertion y < x"); err == nil || !strings.Contains(err.Error(), "Assertion x < y") {
		t.Errorf("another fault: %v, want an error with its log", err)
	}
	p, end, err := start("Assertion x < y")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Discard()
	for said, known := range map[string]bool{"Assertion x < y": true, "out of memory": false} {
		if p.EndedByFault() {
			t.Error("it runs, and is told as ended")
		}
		pid := p.Pid()
		if err := errors.Join(os.WriteFile(end+".new", []byte(said), 0o600), os.Rename(end+".new", end)); err != nil {
			t.Fatal(err) // renamed: the script must not see it empty
		}
		for !serverprocess.Gone(pid) {
			time.Sleep(time.Millisecond)
		}
		looks := 100 // its end is noticed a moment later
		if known {
			looks = 10_000
		}
		for n := 0; n < looks && !p.EndedByFault(); n++ {
			time.Sleep(time.Millisecond)
		}
		if p.EndedByFault() != known {
			t.Errorf("ended with %q: told as the known fault: %t", said, !known)
		}
		if err := p.Restart(); err != nil {
			t.Fatal(err)
		}
	}
}
