package cli

import (
	"slices"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/job"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/storeurl"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/spf13/pflag"
)

// storeFlags are those of every verb that talks to a store.
type storeFlags struct {
	store storeurl.URL
	json  bool
}

func (f *storeFlags) add(fs *pflag.FlagSet, jsonUsage string) {
	f.store.Add(fs)
	fs.BoolVar(&f.json, "json", false, jsonUsage)
}

// trustFlags are those of the verbs that hold a lock.
type trustFlags struct {
	ttl, margin duration
	longTTL     bool
	note        string
}

func (f *trustFlags) add(fs *pflag.FlagSet) {
	f.ttl.min, f.margin.min = 1, 1
	fs.Var(&f.ttl, "ttl", "how long a crashed holder blocks others, on stores where locks expire (default 10s)")
	fs.Var(&f.margin, "margin", "how long before expiry the lock is no longer trusted (default: a tenth of the TTL)")
	fs.BoolVar(&f.longTTL, "allow-long-ttl", false, "allow a TTL of more than 24h")
	fs.StringVar(&f.note, "note", "", "what others are shown as the reason (`TEXT`; default: the command's name and first word)")
}

func (f *trustFlags) options() []hasp.Option {
	var opts []hasp.Option
	if f.ttl.set {
		opts = append(opts, hasp.WithTTL(f.ttl.d))
	}
	if f.margin.set {
		opts = append(opts, hasp.WithSafetyMargin(f.margin.d))
	}
	return opts
}

// lockFlags choose the kind of lock and how long to wait for it.
type lockFlags struct {
	trustFlags
	wait    duration
	noWait  bool
	shared  bool
	permits permits
}

func (f *lockFlags) add(fs *pflag.FlagSet) {
	f.trustFlags.add(fs)
	fs.BoolVarP(&f.shared, "shared", "s", false, "a reader's lock: any number of readers, or one writer")
	fs.Var(&f.permits, "permits", "at most N at once: take one of N permits, or K of N; all users of the name must agree on N")
}

func (f *lockFlags) addWaiting(fs *pflag.FlagSet) {
	fs.VarP(&f.wait, "wait", "w", "wait at most so long (default: as long as it takes)")
	fs.BoolVarP(&f.noWait, "no-wait", "n", false, "do not wait")
}

func (f *lockFlags) check() error {
	if f.shared && f.permits.n > 0 {
		return exit.Usage("--shared and --permits exclude each other: a name is a read-write lock or a semaphore")
	}
	if f.noWait && f.wait.d > 0 {
		return exit.Usage("--no-wait and --wait exclude each other")
	}
	if f.wait.set && f.wait.d == 0 { // as in flock -w 0; not "for ever", which is the default
		f.noWait = true
	}
	return checkText("--note", f.note)
}

const kindShared = "shared"

// kind says what is asked for, if it is not the whole lock.
func (f *lockFlags) kind() string {
	switch {
	case f.permits.n > 0:
		return f.permits.String() + " permits"
	case f.shared:
		return kindShared
	}
	return ""
}

// most is how long to wait: zero with --no-wait.
func (f *lockFlags) most() duration {
	if f.noWait {
		return duration{set: true}
	}
	return f.wait
}

// checkText repeats the library's rule for notes: the library would apply it when the lock is
// asked for, and bad usage must be refused before the store is opened.
func checkText(flag, text string) error {
	if len(text) > 1024 || strings.ContainsRune(text, 0) || strings.ToValidUTF8(text, "") != text {
		return exit.Usage("%s must be at most 1024 bytes of UTF-8", flag)
	}
	return nil
}

// commandFlags are those of the verbs that run a command.
type commandFlags struct {
	killAfter       duration
	onLost, onAsk   job.Reaction
	passCredentials bool
	waitDaemons     bool
	statusFD        int
	quiet, verbose  bool
}

func (f *commandFlags) add(fs *pflag.FlagSet) {
	f.killAfter = duration{d: 10 * time.Second}
	f.onLost = job.Reaction{Most: "kill", Text: "kill"}
	f.onAsk = job.Reaction{Most: "stop", Words: wordSay, Text: wordSay}
	fs.Var(&f.killAfter, "kill-after", "how long after TERM the command gets KILL")
	fs.Var(&f.onLost, "on-lost", "what the command gets when the lock is lost")
	fs.Var(&f.onAsk, "on-ask", "what the command gets when another client asks for the lock (hasp release NAME)")
	fs.BoolVar(&f.passCredentials, "pass-credentials", false, "leave the store's credentials in the command's environment")
	fs.BoolVar(&f.waitDaemons, "wait-daemons", false, "hold the lock also while processes work that have left the command's process group (Linux)")
	fs.IntVar(&f.statusFD, "status-fd", -1, "write what happens to descriptor `N`, one JSON object per line")
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "say nothing about waiting, being busy or losing the lock")
	fs.BoolVarP(&f.verbose, "verbose", "v", false, "say what happens")
}

// holdFlags bound how long run and try hold the lock, and what busy means to them.
type holdFlags struct {
	minHold, maxHold duration
	busyCode         int
	skipOK           bool
	withParent       bool
}

func (f *holdFlags) add(fs *pflag.FlagSet) {
	f.maxHold.min = 1
	fs.Var(&f.maxHold, "max-hold", "stop the command (TERM, then KILL) when it has held the lock so long; exit code 124")
	fs.Var(&f.minHold, "min-hold", "hold the lock at least so long, if the command ends earlier; a signal or the death of hasp ends that")
	fs.BoolVar(&f.withParent, "with-parent", false, "end with the process that started hasp: stop the command (TERM, then KILL), or leave the queue")
	fs.IntVarP(&f.busyCode, "busy-code", "E", exit.CodeBusy, "the exit `code` when the lock is busy")
	fs.BoolVar(&f.skipOK, "skip-ok", false, "do not wait (unless --wait says so), and being busy is a success (exit code 0), as for a cron job that still runs")
}

func (f *holdFlags) check(fs *pflag.FlagSet) error {
	if f.maxHold.set && f.minHold.d > f.maxHold.d {
		return exit.Usage("--min-hold (%s) cannot be longer than --max-hold (%s)", f.minHold.d, f.maxHold.d)
	}
	if f.busyCode < 0 || f.busyCode > 255 {
		return exit.Usage("--busy-code: an exit code is a number from 0 to 255")
	}
	if f.skipOK && fs.Changed("busy-code") {
		return exit.Usage("--skip-ok and --busy-code exclude each other")
	}
	if f.skipOK {
		f.busyCode = exit.CodeOK
	}
	return nil
}

// refuseEmpty refuses an empty text on the command line: --prefix "$UNSET" would grant all names,
// --client-ca "$UNSET" let everybody in, and --faults "$UNSET" mean all of them. A note may be
// empty.
func refuseEmpty(fs *pflag.FlagSet) (err error) {
	fs.Visit(func(f *pflag.Flag) {
		text := slices.Contains([]string{"string", "stringSlice", "stringArray"}, f.Value.Type())
		if text && f.Name != "note" && strings.Trim(f.Value.String(), `[]"`) == "" {
			err = exit.Usage("--%s is empty: give it a value, or leave it out", f.Name)
		}
	})
	return err
}

// longestTTL is the longest --ttl without a word of confirmation. A crashed holder blocks all
// others for the TTL, and nothing but hasp release --force shortens that: 100000h is meant as "for
// ever" by those who expect the lock to end with their program, which it does at any TTL.
const longestTTL = 24 * time.Hour

// checkTTL refuses a longer TTL, whether by flag or in the store's URL, unless --allow-long-ttl is
// given.
func checkTTL(fs *pflag.FlagSet) error {
	allow, store := fs.Lookup("allow-long-ttl"), fs.Lookup("store")
	if allow == nil || store == nil || allow.Value.String() == "true" {
		return nil // the verb holds nothing, or the user knows
	}
	ttl := fs.Lookup("ttl").Value.(*duration)
	d, where := ttl.d, "--ttl"
	if !ttl.set {
		d, where = ttlIn(store.Value.String()), "the ttl in the store's URL"
	}
	if d <= longestTTL {
		return nil
	}
	return exit.Usage("%s is %s: if the holder crashes, others wait for so long. A lock is renewed while its holder lives; add --allow-long-ttl if more than %s is meant",
		where, d, longestTTL)
}

func ttlIn(store string) time.Duration {
	u, err := driver.SplitURL(store)
	if err != nil {
		return 0
	}
	d, err := time.ParseDuration(u.Query().Get("ttl"))
	if err != nil {
		return 0 // absent, or the driver says what is wrong with it
	}
	return d
}
