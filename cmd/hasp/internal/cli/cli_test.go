//go:build unix

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/job"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/settings"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/storeurl"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/hasplock/hasp/internal/signals"
)

func TestBusyMessage(t *testing.T) {
	now := time.Date(2026, 3, 1, 14, 5, 21, 0, time.Local)
	ana := hasp.Entry{
		Token: 88, Since: now.Add(-3*time.Minute - 10*time.Second),
		Owner: hasp.Owner{User: "ana", Host: "web-3", PID: 4121, Program: "hasp", Note: "make deploy"},
	}
	waiter := hasp.Entry{Owner: hasp.Owner{User: "bo", Host: "web-1", PID: 7}}
	none := func(hasp.Entry) bool { return false }
	for _, c := range []struct {
		q    hasp.Queue
		want string
	}{
		{
			hasp.Queue{Name: "deploy", Holders: []hasp.Entry{ana}, Waiters: []hasp.Entry{waiter, waiter}},
			`"deploy" held by ana@web-3 pid 4121 (make deploy) since 14:02:11, 3m10s, token 88, 2 waiting`,
		},
		{
			hasp.Queue{Name: "p", Holders: []hasp.Entry{ana, ana, ana}},
			`"p" held by ana@web-3 pid 4121 (make deploy) and 2 more since 14:02:11, 3m10s, token 88`,
		},
		{hasp.Queue{Name: "p", Waiters: []hasp.Entry{waiter}}, `"p" is about to pass to bo@web-1 pid 7, 1 waiting`},
		{hasp.Queue{Name: "p"}, `"p" just became free`},
		{
			hasp.Queue{Name: "p", Holders: []hasp.Entry{{Owner: hasp.Owner{Host: "web-3"}, LooksOver: ana.Since}}},
			`"p" held by web-3, looks over since 14:02:11`,
		},
		{hasp.Queue{Name: "p", Quarantine: 2500 * time.Millisecond}, `"p" is free, but the store may have forgotten locks, and grants none for another 2.5s`},
		{
			hasp.Queue{Name: "e\x1b[2J", Holders: []hasp.Entry{{Owner: hasp.Owner{Note: "x\x1b]0;title\a\ny"}}}},
			`"e?[2J" held by (x?]0;title??y)`,
		},
		{
			hasp.Queue{Name: "l", Holders: []hasp.Entry{{Owner: hasp.Owner{User: "ana", Host: "web-3", PID: 1, Note: strings.Repeat("é", 60)}}, {}}},
			`"l" held by ana@web-3 pid 1 (` + strings.Repeat("é", 60) + `) and 1 more`,
		},
		{
			hasp.Queue{Name: "l", Holders: []hasp.Entry{{Owner: hasp.Owner{User: "ana", Host: "web-3", PID: 1, Note: strings.Repeat("é", 500)}}}},
			`"l" held by ana@web-3 pid 1 (` + strings.Repeat("é", 59) + `…)`,
		},
	} {
		if got := view.HeldBy(c.q, none, now); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
	me := func(e hasp.Entry) bool { return e.Owner.PID == 7 }
	q := hasp.Queue{Name: "deploy", Holders: []hasp.Entry{ana}, Waiters: []hasp.Entry{waiter}}
	if got := view.HeldBy(q, me, now); strings.Contains(got, "waiting") {
		t.Errorf("the asking entry counts itself: %s", got)
	}
	if got := view.Clock(now.AddDate(0, 0, -1), now); got != "2026-02-28 14:05:21" {
		t.Errorf("yesterday is %s", got)
	}
}

func TestNoteShowsNoArguments(t *testing.T) {
	for _, c := range []struct {
		argv []string
		want string
	}{
		{[]string{"make", "deploy"}, "make deploy"},
		{[]string{"/usr/bin/pg_dump", "-W", "hunter2"}, "pg_dump"},
		{[]string{"curl", "https://ana:s3cret@host"}, "curl"},
		{[]string{"login", "Hunter"}, "login"},
		{[]string{"login", "hunter2"}, "login"},
		{[]string{"login", "correcthorsebatterystaple"}, "login"},
		{[]string{"login", "-pass"}, "login"},
		{[]string{"x"}, "x"},
		{[]string{"x", ""}, "x"},
		{[]string{"x\xff"}, "x?"},
	} {
		if got := noteFor(c.argv); got != c.want {
			t.Errorf("%q: note %q, want %q", c.argv, got, c.want)
		}
	}
}

func storeAt(text string) *storeurl.URL {
	s := new(storeurl.URL)
	_ = s.Set(text) // it takes any text
	return s
}

func TestOverlayReplacesAndRemoves(t *testing.T) {
	env := []string{"HASP_TOKEN=1", "A=b", "HASP_NAME=outer", "HASP_DEADLINE=x"}
	got := overlay(env, map[string]string{"HASP_NAME": "inner", "HASP_TOKEN": "", "HASP_DEADLINE": ""})
	if want := []string{"A=b", "HASP_NAME=inner"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if env[0] != "HASP_TOKEN=1" {
		t.Error("the original environment was changed")
	}
}

func TestCommandEnvByStore(t *testing.T) {
	ctx := context.Background()
	c, err := hasp.Open(ctx, "cut://"+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := c.Mutex("a").Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	a := &app{settings: settings.Settings{
		Getenv:  func(string) string { return "" },
		Environ: func() []string { return []string{"REDISCLI_AUTH=r", "PGPASSWORD=p", "PGSSLPASSWORD=k", "MYSQL_PWD=m"} },
	}}
	for _, is := range [][2]string{
		{"redis", "REDISCLI_AUTH=r"}, {"valkey", "REDISCLI_AUTH=r"}, {"mysql", "MYSQL_PWD=m"}, {"mariadb", "MYSQL_PWD=m"},
		{"postgres", "PGPASSWORD=p"}, {"postgresql", "PGPASSWORD=p"}, {"postgres", "PGSSLPASSWORD=k"}, {"postgresql", "PGSSLPASSWORD=k"},
	} {
		scheme, gone := is[0], is[1]
		env := a.commandEnv(leaseOf(l), c, storeAt(scheme+"://ana:s3cret@h"), false, true, &reporter{})
		if slices.Contains(env, gone) || !slices.Contains(env, "HASP_STORE="+scheme+"://h") || len(env) < 6 {
			t.Errorf("with %s: %q", scheme, env)
		}
		env = a.commandEnv(leaseOf(l), c, storeAt(scheme+"://ana:s3cret@h"), true, true, &reporter{})
		if !slices.Contains(env, gone) || !slices.Contains(env, "HASP_STORE="+scheme+"://ana:s3cret@h") {
			t.Errorf("with %s and --pass-credentials: %q", scheme, env)
		}
	}
}

func TestFailureCodes(t *testing.T) {
	lockError := func(err error) error { return &hasp.LockError{Op: "lock", Name: "a", Err: err} }
	for _, c := range []struct {
		err  error
		want int
	}{
		{lockError(&hasp.BusyError{Err: hasp.ErrBusy}), 75},
		{&hasp.LostError{}, 76},
		{lockError(hasp.ErrUnknown), 69},
		{errors.New("connection refused"), 69},
		{context.DeadlineExceeded, 69},
		{lockError(hasp.ErrMismatch), 78},
		{hasp.ErrUnsupported, 78},
		{hasp.ErrInvalid, 78},
		{hasp.ErrDeadlock, 78},
		{lockError(fmt.Errorf("%w: read-only", hasp.ErrRefused)), 78},
		{fmt.Errorf("open: %w", fs.ErrPermission), 78},
		{hasp.ErrClosed, 70},
		{exit.Usage("x"), 64},
		{fmt.Errorf("run: %w", exit.Misconfigured("x")), 78},
		{fmt.Errorf("%w: %w", context.Canceled, signals.Interrupted{Signal: 15}), 143},
	} {
		if got := exit.Of(c.err).Code; got != c.want {
			t.Errorf("%v: exit code %d, want %d", c.err, got, c.want)
		}
	}
}

func TestValues(t *testing.T) {
	for in, want := range map[string]time.Duration{"30s": 30 * time.Second, "5": 5 * time.Second, "1h30m": 90 * time.Minute, "0": 0} {
		if s := (duration{}); s.Set(in) != nil || s.d != want || !s.set {
			t.Errorf("%q is %s", in, s.d)
		}
	}
	for _, in := range []string{"", "soon", "-1s", "5 s", "1e9", "99999999999999999999", "-5"} {
		if s := (duration{}); s.Set(in) == nil {
			t.Errorf("%q was taken for %s", in, s.d)
		}
	}
	for in, want := range map[string]permits{"4": {1, 4}, "2/4": {2, 4}, "4/4": {4, 4}} {
		if p := (permits{}); p.Set(in) != nil || p != want {
			t.Errorf("%q is %v", in, p)
		}
	}
	for _, in := range []string{"", "0", "0/3", "4/3", "-1/3", "1/", "/3", "2147483647", "a"} {
		if p := (permits{}); p.Set(in) == nil {
			t.Errorf("%q was taken for %v", in, p)
		}
	}
	p := job.Reaction{Most: "kill"}
	for _, in := range []string{"signal:USR1", "signal:SIGUSR1", "signal:usr1"} {
		if p.Set(in) != nil || signals.Name(p.Signal) != "USR1" || p.Ends() || p.Ignores() {
			t.Errorf("%q is %v", in, p)
		}
	}
	for _, in := range []string{"", "Kill", "signal:", "signal:9", "signal:KILLALL", "stop"} {
		if p.Set(in) == nil {
			t.Errorf("%q was taken", in)
		}
	}
}

// A person is shown a new line when the place or the holder changes, not as time passes.
func TestWaitingText(t *testing.T) {
	now := time.Now()
	q := hasp.Queue{Name: "a", Holders: []hasp.Entry{{ID: "x", Since: now}}, Waiters: []hasp.Entry{{ID: "y"}, {ID: "z"}}}
	host, _ := os.Hostname()
	q.Waiters[1].Owner = hasp.Owner{PID: os.Getpid(), Host: host}
	key, text := waitingText(q, now)
	if !strings.HasPrefix(text, "waiting, position 2 of 2: ") {
		t.Errorf("got %q", text)
	}
	if later, _ := waitingText(q, now.Add(time.Minute)); later != key {
		t.Error("time alone is something new")
	}
	q.Waiters = q.Waiters[1:]
	if moved, _ := waitingText(q, now); moved == key {
		t.Error("a new position is nothing new")
	}
}

func FuzzArguments(f *testing.F) {
	for _, args := range [][]string{
		{"run", "a", "--", "true"}, {"run", "-n", "-w3", "a", "--", "x"}, {"try", "--permits=2/3", "a", "--", "x", "--y"},
		{"hold", "--ttl", "5s", "a"}, {"elect", "--observe", "a"}, {"who"}, {"ls", "p"}, {"-store=redis://u:p@h"}, {"run", "--", "--", "x"},
		{"run", "--status-fd", "1", "a", "--", "x"}, {"completion", "bash"}, {"help", "run"}, {"run", "--on-lost=signal:TERM", "a", "--", "x"},
		{"doctor", "--json"}, {"wait", "-w0", "a"}, {"__complete", "run", ""}, {"version", "--json=x"}, {"run", "\xff", "--", "x"},
	} {
		f.Add(strings.Join(args, "\x00"), "")
	}
	f.Add("run\x00a\x00--\x00true", "soon")
	f.Fuzz(func(t *testing.T, line, wait string) {
		args := strings.Split(line, "\x00")
		if slices.Contains(args, "man") {
			t.Skip("writes files where it is told to")
		}
		var errOut strings.Builder
		var opened []string
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		a := &app{
			streams: streams{
				stdin: null, stdout: new(strings.Builder), stderr: &errOut,
				openStatus: func(int) (io.WriteCloser, error) { return nil, errors.New("closed") },
			},
			settings: settings.Settings{Environ: func() []string { return nil }, Getenv: func(key string) string {
				if key == "HASP_WAIT" {
					return wait
				}
				return ""
			}},
			// Every verb has to pass here before it does anything.
			connect: func(_ context.Context, url string, _ ...hasp.Option) (*hasp.Client, error) {
				opened = append(opened, url)
				return nil, fmt.Errorf("%w: no store", hasp.ErrInvalid) // final: elect tries again for ever otherwise
			},
		}
		code := a.run(args)
		documented := []int{0, 64, 69, 70, 75, 76, 78, 124, 126, 127}
		if !slices.Contains(documented, code) {
			t.Fatalf("%q: exit code %d", args, code)
		}
		if code == exit.CodeUsage && len(opened) > 0 {
			t.Fatalf("%q: refused as bad usage after the store was opened", args)
		}
		if code == exit.CodeUsage && strings.Count(errOut.String(), "\n") != 1 {
			t.Fatalf("%q: not one line: %q", args, errOut.String())
		}
		for _, store := range opened {
			if u, err := url.Parse(store); err == nil && u.User != nil {
				if password, ok := u.User.Password(); ok && len(password) > 3 && strings.Contains(errOut.String(), password) {
					t.Fatalf("%q: the password is shown: %q", args, errOut.String())
				}
			}
		}
	})
}
