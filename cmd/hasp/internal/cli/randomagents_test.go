//go:build unix

package cli

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testtier"
)

var agentsSeed = flag.Uint64("agents.seed", 0, "run the random agents of this seed alone")

func TestRandomAgents(t *testing.T) {
	t.Parallel()
	seeds := []uint64{1, 2}
	if *agentsSeed != 0 {
		seeds = []uint64{*agentsSeed}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			newProgram(t, 3, 15).judge(t, seed)
		})
	}
}

// Seeds that differ in each run.
func TestMoreRandomAgents(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	for began := time.Now(); time.Since(began) < 30*time.Second && !t.Failed(); {
		newProgram(t, 4, 30).judge(t, cmp.Or(*agentsSeed, rand.Uint64()))
	}
}

// On a store whose locks expire: one whose holder is killed is free after the TTL. The hasp of these
// tests has no such store, so this is the one that users have.
func TestRandomAgentsOnRedis(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	hasp := t.TempDir() + "/hasp"
	if out, err := exec.Command("go", "build", "-o", hasp, "github.com/hasplock/hasp/cmd/hasp").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for began := time.Now(); time.Since(began) < 30*time.Second && !t.Failed(); {
		p := newProgram(t, 4, 30)
		p.store, p.expires, p.hasp = backends.StartRedis(t, backends.RedisOptions{}).URL()+"?ttl=3s", true, hasp
		p.judge(t, cmp.Or(*agentsSeed, rand.Uint64()))
	}
}

func (p *program) judge(t *testing.T, seed uint64) {
	t.Helper()
	p.run(seed)
	if t.Logf("seed %d: %v, and %d times of holding", seed, p.answers, len(p.spans)); len(p.faults) > 0 {
		t.Errorf("go test -run ^%s$ -agents.seed=%d\n%s\n%s", t.Name(), seed, strings.Join(p.faults, "\n"), strings.Join(p.log, "\n"))
	}
}

// newProgram has separate directories. That of the sockets must have a short path.
func newProgram(t *testing.T, agents, steps int) *program {
	t.Helper()
	hasp, err := exec.LookPath("hasp")
	if err != nil {
		t.Fatal(err)
	}
	sockets, err := os.MkdirTemp("/tmp", "agents")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(sockets) })
	dir := t.TempDir()
	return &program{
		history: history{answers: map[string]int{}}, dir: dir, sockets: sockets, store: "file://" + dir + "/locks", hasp: hasp,
		agents: agents, steps: steps, bound: patience,
	}
}

// Controls: a hasp that does not do what it says is found out.
func TestRandomAgentsFind(t *testing.T) {
	t.Parallel()
	for kind, script := range map[string]string{
		"exclusion": `"$H" "$@"; c=$?; case "$1 $c" in "hold 75"|"who 75") exit 0;; esac; exit $c`, // held, it says, and it waits
		"code":      `case $1 in release) exit 0;; esac; exec "$H" "$@"`,
		"mine":      `p=$(ls $TMPDIR | head -n 1); p=${p#hasp-hold-}; case "$* $p" in *--mine*.*) set -- "$@" --pid ${p%.*};; esac; exec "$H" "$@"`,
		"order":     `case $1 in hold|who) echo >>n; "$H" "$@" >$$; c=$?; sed "s/\"place\":/&$(wc -l <n)/" $$; exit $c;; esac; exec "$H" "$@"`,
		"left":      `mkdir -p $TMPDIR/left; exec "$H" "$@"`,
		"hang":      `sleep 99`,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			p := newProgram(t, 3, 60)
			p.firstFault, p.bound = kind, 3*time.Second
			if kind == "left" {
				p.steps = 2
			}
			p.before = p.dir + ":"
			if err := os.WriteFile(p.dir+"/hasp", []byte("#!/bin/sh\nH="+p.hasp+"\n"+script), 0o700); err != nil {
				t.Fatal(err)
			}
			if p.run(1); !p.found(kind) {
				t.Errorf("not found, but\n%s\n%s", strings.Join(p.faults, "\n"), strings.Join(p.log, "\n"))
			}
		})
	}
}

// left finds leftovers when all agents have released or are dead. The socket of a killed holder, whose
// agent is dead, is removed by the next holder.
func (p *program) left() {
	hasp := func(args ...string) string {
		c := exec.Command(p.hasp, args...)
		c.Env = append(os.Environ(), p.environ()...)
		out, err := c.Output()
		return fmt.Sprint(string(out), err)
	}
	me, said := strconv.Itoa(os.Getpid()), ""
	for deadline := time.Now().Add(p.bound); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if said = fmt.Sprint(hasp("ls", "--json"), p.holders(p.sockets)); said != "<nil>[]" {
			continue
		}
		said = hasp("hold", "--background", "--pid", me, "x") + hasp("release", "--mine", "--pid", me)
		found, err := os.ReadDir(p.sockets)
		if said = fmt.Sprint(said, found, err); len(found) == 0 && err == nil {
			return
		}
	}
	p.fault("left", "%s", said)
}
