//go:build unix

package torture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp"
)

// script makes a program of sh, and returns the command that starts it. before is run first, and
// then one of cases for each command.
func script(t *testing.T, before, cases string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "adapter.sh")
	text := "#!/bin/sh\n" + before + "\nwhile read -r command name; do case $command in\n" + cases + "\nesac; done\n"
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func starterOf(t *testing.T) *starter {
	s := newStarter()
	t.Cleanup(s.close)
	return s
}

func taskOf(command string) adapterTask {
	return adapterTask{Command: command, Store: "redis://:s3cret@127.0.0.1:1", TTL: 10 * time.Second}
}

// slotOf is an adapterSlot whose faults and ends are collected.
func slotOf(t *testing.T, command string) (s *adapterSlot, broken, ended *[]error) {
	broken, ended = new([]error), new([]error)
	s = &adapterSlot{
		task: taskOf(command), name: "x", starter: starterOf(t),
		broken: func(err error) { *broken = append(*broken, err) }, ended: func(err error) { *ended = append(*ended, err) },
		late: func(Stall) {},
	}
	t.Cleanup(func() { s.close() })
	return s, broken, ended
}

func TestAdapterHolds(t *testing.T) {
	s, broken, ended := slotOf(t, script(t, `echo "ready $HASP_ADDRESS $HASP_TTL_MS"`, `
		lock) echo "ok 1 17" ;;
		check) echo held ;;
		unlock) echo "ok 2" ;;`))
	l, err := s.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if l.Token() != 17 || !l.Held() {
		t.Errorf("token %d, held %v", l.Token(), l.Held())
	}
	if err := l.Release(t.Context()); err != nil || len(*broken)+len(*ended) > 0 {
		t.Errorf("%v, %v, %v", err, *broken, *ended)
	}
}

// The environment has what an adapter needs, and no argument has the password.
func TestAdapterEnvironment(t *testing.T) {
	a, err := startAdapter(t.Context(), starterOf(t), taskOf(script(t, `echo ready`, `
		lock) echo "ok 1"; test "$HASP_STORE $HASP_ADDRESS $HASP_TTL_MS" = "redis://:s3cret@127.0.0.1:1 127.0.0.1:1 10000" || exit 7 ;;
		check) tr '\0' ' ' </proc/$$/cmdline; echo ;;`)), true)
	if err != nil {
		t.Fatal(err)
	}
	defer a.end()
	for _, command := range []string{"lock", "check"} {
		line, err := a.ask(t.Context(), openBound, command, "x")
		if err != nil || strings.Contains(line, "s3cret") {
			t.Errorf("%s: %q, %v", command, line, err)
		}
	}
}

// What an adapter does against the protocol before anything else is said in words.
func TestAdapterThatCannotBegin(t *testing.T) {
	for want, command := range map[string]string{
		"not found":                           "./no-such-adapter",
		"exit status 3: no such database":     `sh -c 'echo no such database >&2; exit 3'`,
		`begins with "usage: x", not with`:    `sh -c 'echo usage: x; cat'`,
		`has ended`:                           `sh -c 'exec >&-; read line'`, // it says nothing more
		`says "again", and was asked nothing`: `sh -c 'echo ready; echo again; cat'`,
	} {
		a, err := startAdapter(t.Context(), starterOf(t), taskOf(command), true)
		if err == nil { // the second line may come later
			<-a.gone
			err = a.why()
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", command, err, want)
		}
	}
}

// Wrong answers end the run; a library's own errors do not.
func TestAdapterAnswers(t *testing.T) {
	for _, c := range []struct{ lock, check, unlock, broken, released string }{
		{lock: "granted", broken: `answers "granted" to "lock", which must be answered by "ok"`},
		{lock: "ok 1 x", broken: `"x" is to be a fencing token`},
		{lock: "ok 1 0", broken: `"0" is to be a fencing token`},
		{lock: "error: refused"},
		{lock: "ok", check: "yes", unlock: "ok", broken: `answers "yes" to "check"`, released: "lost"},
		{lock: "ok", check: "held", unlock: "done", broken: `answers "done" to "unlock"`, released: "which must be"},
		{lock: "ok", check: "none", unlock: "lost since yesterday", released: "lost since yesterday"},
		{lock: "ok", check: "none", unlock: "error: reset", released: "error: reset"},
		{lock: "ok", check: "lost", unlock: "ok", released: "lost"}, // what was not held is not released
	} {
		s, broken, _ := slotOf(t, script(t, "echo ready", fmt.Sprintf("lock) echo %q ;;\ncheck) echo %q ;;\nunlock) echo %q ;;", c.lock, c.check, c.unlock)))
		l, err := s.lock(t.Context())
		if err == nil {
			held := l.Held()
			if want := c.check == "held" || c.check == "none"; held != want {
				t.Errorf("%+v: held %v", c, held)
			}
			if err := l.Release(t.Context()); !strings.Contains(fmt.Sprint(err), c.released) || c.check != "none" && !errors.Is(err, hasp.ErrLost) && c.broken == "" {
				t.Errorf("%+v: released: %v", c, err)
			}
		}
		if (len(*broken) > 0) != (c.broken != "") || c.broken != "" && !strings.Contains((*broken)[0].Error(), c.broken) {
			t.Errorf("%+v: broken by %v", c, *broken)
		}
	}
}

// A loss that the adapter tells of by itself closes Lost.
func TestAdapterTellsOfALoss(t *testing.T) {
	s, _, _ := slotOf(t, script(t, "echo ready; echo notice lost long ago", `
		lock) echo ok; echo notice lost by the server; echo notice lost again ;;
		check) echo lost ;;
		unlock) echo lost ;;`))
	l, err := s.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	<-l.Context().Done()
	if l.Held() || !errors.Is(l.Release(t.Context()), hasp.ErrLost) {
		t.Error("it holds what it was told is lost")
	}
}

// A holder that was told of the loss gives up, also if the library says held later; one that could
// not be told asks again.
func TestAdapterIsAskedUntilItSaysLost(t *testing.T) {
	s, _, _ := slotOf(t, script(t, "echo ready; n=0", `
		lock) echo ok ;;
		check) n=$((n + 1)); case $n in 1) echo error: reset ;; 2) echo held ;; 3) echo lost ;; *) echo held ;; esac ;;
		unlock) echo ok ;;`))
	l, err := s.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !l.Held() || l.Held() || l.Held() {
		t.Error("want held after an error, and then lost for good")
	}
	if err := l.Release(t.Context()); !errors.Is(err, hasp.ErrLost) {
		t.Error(err)
	}
}

// An adapter that ends is replaced, and its holder has lost the lock. One after the other that is
// granted nothing ends the run.
func TestAdapterThatEnds(t *testing.T) {
	s, broken, ended := slotOf(t, script(t, "echo ready", `lock) echo ok ;; check) echo my server is gone >&2; exit 4 ;;`))
	for range 2 {
		l, err := s.lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if l.Held() || l.Release(t.Context()) == nil {
			t.Error("a dead adapter holds")
		}
	}
	if len(*broken) > 0 || len(*ended) != 2 || !strings.Contains((*ended)[0].Error(), "exit status 4: my server is gone") {
		t.Errorf("broken %v, ended %v", *broken, *ended)
	}
	s, broken, ended = slotOf(t, script(t, "echo ready", `lock) exit 5 ;;`))
	for range mostBarren {
		if _, err := s.lock(t.Context()); err == nil {
			t.Fatal("granted")
		}
	}
	if len(*broken) != 1 || len(*ended) != mostBarren || !strings.Contains((*broken)[0].Error(), "10 adapters in a row have ended") {
		t.Errorf("broken %v, ended %d", *broken, len(*ended))
	}
}

// An adapter that never answers is killed, with what it has started where its group is its own.
func TestAdapterThatNeverAnswers(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	a, err := startAdapter(t.Context(), starterOf(t), taskOf(script(t, "echo ready", `lock) sleep 1000 & echo $! >`+pid+`; wait ;;`)), true)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for text := ""; !strings.HasSuffix(text, "\n") && t.Context().Err() == nil; time.Sleep(time.Millisecond) {
			b, _ := os.ReadFile(pid)
			text = string(b)
		}
	}()
	if line, err := a.ask(ctx, time.Hour, "lock", "x"); !errors.Is(err, context.Canceled) {
		t.Fatalf("%q, %v", line, err)
	}
	<-a.gone
	text, _ := os.ReadFile(pid)
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for alive(n) {
		time.Sleep(time.Millisecond)
	}
	b, err := startAdapter(t.Context(), starterOf(t), taskOf(script(t, "echo ready", "")), true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.ask(t.Context(), 50*time.Millisecond, "check", ""); err == nil || !strings.Contains(err.Error(), `has not answered "check" within 50ms`) {
		t.Error(err)
	}
}

// alive reports whether a process runs; one that is dead and waits for its parent does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprint("/proc/", pid, "/stat"))
	if err != nil {
		return syscall.Kill(pid, 0) == nil
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

// Locks that exclude no client, or not always, are caught, also those that ask who has the key when
// they are asked, and so admit each loss. The key is a file.
func TestBrokenAdapterIsCaught(t *testing.T) {
	asks := `check) if [ "$(cat $key.$name 2>&-)" = $$ ]; then echo held; else echo lost; fi ;;`
	free := `until (set -C; echo $$ >$key.$lock) 2>&-; do sleep 0.01; done; echo ok`
	removes := `unlock) if [ "$(cat $key.$lock 2>&-)" = $$ ]; then rm $key.$lock; echo ok; else echo lost; fi ;;`
	asks = strings.ReplaceAll(asks, "$name", "$lock")
	for what, cases := range map[string]string{
		"none at all":           `lock|unlock) echo ok ;; check) echo held ;;`,
		"takes it from another": `lock) lock=$name; echo $$ >$key.$lock; echo ok ;; ` + asks + removes,
		"removes another's":     `lock) lock=$name; n=0; ` + strings.Replace(free, "do ", "do if [ $((n = n + 1)) -gt 100 ]; then rm -f $key.$lock; fi; ", 1) + ` ;; ` + asks + ` unlock) rm -f $key.$lock; echo ok ;;`,
		"takes it now and then": `lock) lock=$name; until (set -C; echo $$ >$key.$lock) 2>&-; do case $(date +%N) in ?????[0-2]*) echo $$ >$key.$lock; break ;; esac; sleep 0.01; done; echo ok ;; ` + asks + removes,
	} {
		t.Run(what, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			c := config(t, "worker")
			c.Adapter = script(t, "echo ready blind; key="+filepath.Join(t.TempDir(), "key"), cases)
			for ; ; c.For *= 3 { // on a busy machine most holders are disturbed
				v, err := Run(t.Context(), c)
				if err != nil {
					t.Fatal(err)
				}
				t.Log(v.Text())
				if v.Result == BrokenResult && v.Overlaps.Broken > 0 && v.Adapter == c.Adapter && v.Orphans == nil {
					return
				}
				if c.For > time.Minute {
					t.Fatal("it is not caught")
				}
			}
		})
	}
}

// An adapter that does not know the protocol, or cannot reach its store, ends the run before it
// begins.
func TestAdapterThatCannotHold(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	for want, cases := range map[string]string{
		"connection refused":                     `lock) echo error: connection refused ;;`,
		`right after the lock was granted`:       `lock) echo ok ;; check) echo lost ;;`,
		`"nonsense" to "unlock"`:                 `lock) echo ok ;; check) echo held ;; unlock) echo nonsense ;;`,
		"has ended: exit status 9: out of ideas": `lock) echo out of ideas >&2; exit 9 ;;`,
	} {
		c := config(t, "worker")
		c.Adapter = script(t, "echo ready", cases)
		if v, err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", want, v, err)
		}
	}
	if left, _ := os.ReadDir(tmp); len(left) > 0 {
		t.Errorf("left in TMPDIR: %v", left)
	}
}

// One that has lost its first lock rightly, since nothing ran for a TTL, is none of these.
func TestAdapterThatWasLate(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	c := config(t, "worker")
	c.For = time.Second
	late := filepath.Join(t.TempDir(), "late")
	c.Adapter = script(t, "echo ready blind", `lock) echo ok ;; check) echo held ;; unlock) if mkdir `+late+` 2>&-; then sleep `+fmt.Sprint(c.TTL.Seconds())+`; echo lost; else echo ok; fi ;;`)
	if _, err := Run(t.Context(), c); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(late); err != nil {
		t.Error(err)
	}
}
