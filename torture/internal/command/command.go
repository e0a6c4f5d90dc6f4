//go:build unix

// Package command is the hasp-torture command: flags, consent, and how a verdict is told.
package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/hasplock/hasp/internal/signals"
	"github.com/hasplock/hasp/torture/internal/localstore"
	"github.com/hasplock/hasp/torture/internal/torture"
	"github.com/spf13/pflag"
)

// The exit codes that hasp does not have. 1 is that of its questions.
const (
	codeBroken       = exit.CodeNo
	codeInconclusive = 77
)

func internal(format string, args ...any) *exit.Failure {
	return &exit.Failure{Code: exit.CodeInternal, Err: fmt.Errorf(format, args...)}
}

// Main runs the command with this process's arguments, and returns the exit code.
func Main() int {
	// A reader that has gone makes a write fail, and does not end the run before it has cleaned up.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	err := run(os.Args[1:])
	if err == nil {
		return 0
	}
	f := exit.Of(err)
	if !f.Told {
		tell(f.Error())
	}
	return f.Code
}

func tell(text string) {
	lines := strings.FieldsFunc(strings.TrimPrefix(text, "hasp: "), func(r rune) bool { return r == '\n' || r == '\r' })
	fmt.Fprintln(os.Stderr, "hasp-torture: "+strings.Join(lines, "; "))
}

type flags struct {
	store                   string // URL
	duration, ttl, interval time.Duration
	processes, names        int
	faults, adapter         string
	seed                    uint64
	local                   string
	yes, dry, json          bool
}

// The bounds of a run. Each process has four locks at a time, and a proxy.
const (
	leastProcesses = 2
	mostProcesses  = 64
	mostNames      = 64
	leastTTL       = 500 * time.Millisecond
	leastInterval  = 10 * time.Millisecond
)

// manual is the help, before the flags.
const manual = `Prove the store's locks on the store itself: start --processes clients that
contend for separate names, each behind a proxy, for --for. Meanwhile stop,
cut off and kill those that hold, and record what each of them was told. At the
end judge the record by the promises of docs/GUARANTEES.md: whether two believed
at once, whether a release reported success too late, whether a fence let a late
write through, whether something is stuck or left.

FAULTS
  pause    stop the process for longer than the TTL
  hold     deliver nothing for longer than the TTL; then all of it, late
  ackloss  the store does what it is asked, and the answer is lost
  cut      reset its connections
  kill     kill -9
All these happen at the clients; no server is touched. A file store has no network:
pause and kill. A plan of faults is drawn from --seed; --dry-run prints it.

LOCAL
  --local KIND, in place of a URL, starts the server's program that is installed on
  this machine, with temporary data, and ends it after the run. Parameters of the store's
  URL may follow: --local 'redis?strategy=setnx'. There are redis, redlock (three
  servers), etcd, zookeeper, postgres, mariadb, file. Only such a server is disturbed:
  serverpause    stop it for longer than the TTL
  serverrestart  kill -9, and start it with its data
  serverforget   kill -9, and start it with the data of before the run
An overlap that docs/GUARANTEES.md does not exclude after a server has forgotten is
counted, and no broken promise.

ADAPTER
  With --adapter the lock under test is not hasp's but a program's, which speaks a
  protocol of lines: "ready", then "ok" to "lock NAME", "held" or "lost" to "check", "ok"
  or "lost" to "unlock". sh starts it once for each process and name, with the
  store's URL in HASP_STORE, host and port in HASP_ADDRESS, both of a proxy, and the
  TTL in HASP_TTL_MS. docs/TORTURE.md has the protocol and an example.

CONTROL
  One name is locked naively: the holder never asks whether it still holds. If
  that lock is not caught, the run proves nothing: INCONCLUSIVE, exit code 77.

The load is bounded, a hundred acquisitions a second for each process and name at
most, but do not run it against a store in use without need. A store that is not
on this machine needs --yes. What was locked is released at the
end, also after Ctrl-C; what a killed process held expires. docs/TORTURE.md says
how to read the verdict, and what it cannot show.

EXIT CODES
  0   every promise held, and the control was caught
  1   a promise is broken; the record is kept, and its directory named
  64  usage
  69  the store cannot be reached
  70  the record cannot be written
  77  inconclusive: the control was not caught, or the machine was too slow
  78  the adapter cannot be used, or what --local needs is missing, or the store
      refuses`

// workerVerb makes a process of this binary a worker of a run.
const workerVerb = "__worker"

func run(args []string) error {
	if len(args) == 1 && args[0] == workerVerb {
		return torture.Worker(os.Stdin, os.Stdout, hasp.Open)
	}
	f, help, err := parse(args)
	if err != nil {
		return err
	}
	if help != "" {
		_, err := fmt.Print(help)
		return err
	}
	c, err := f.config()
	if err != nil {
		return err
	}
	if f.dry {
		return f.printPlan(torture.Plan(c))
	}
	return f.torture(c)
}

// parse reads the command line, and HASP_STORE where it names no store. help is its text if that is
// asked for.
func parse(args []string) (f *flags, help string, err error) {
	f = &flags{}
	fl := pflag.NewFlagSet("hasp-torture", pflag.ContinueOnError)
	fl.StringVar(&f.store, "store", "", "the store's `URL` (default: HASP_STORE)")
	fl.DurationVar(&f.duration, "for", time.Minute, "how long to go on")
	fl.DurationVar(&f.ttl, "ttl", 2*time.Second, "the TTL to ask for")
	fl.IntVar(&f.processes, "processes", 6, fmt.Sprintf("how many clients contend (`N`, %d to %d)", leastProcesses, mostProcesses))
	fl.StringVar(&f.faults, "faults", "", "which `FAULTS`, with commas between (default: all that the store's kind allows)")
	fl.IntVar(&f.names, "names", torture.DefaultNames, fmt.Sprintf("how many names they contend for (`N`, 1 to %d)", mostNames))
	fl.DurationVar(&f.interval, "interval", 0, "the mean time between two faults of clients (default: half the TTL)")
	fl.StringVar(&f.local, "local", "", "start a store on this machine for the run, of a `KIND` that is installed, and disturb it, too")
	fl.StringVar(&f.adapter, "adapter", "", "the `COMMAND` of a program that is the lock under test, in place of hasp's locks")
	fl.Uint64Var(&f.seed, "seed", uint64(rand.Uint32()), "the `NUMBER` that the plan is drawn from (default: a random one, which is printed)")
	fl.Lookup("seed").DefValue = "0" // which help does not show
	fl.BoolVarP(&f.yes, "yes", "y", false, "load a store that is not on this machine")
	fl.BoolVar(&f.dry, "dry-run", false, "print the plan of faults and do nothing")
	fl.BoolVar(&f.json, "json", false, "as one JSON object")
	fl.Usage = func() {}
	switch err := fl.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return f, manual + "\n\nUsage:\n  hasp-torture [flags] [URL]\n\nExamples:\n" + examples + "\n\nFlags:\n" + fl.FlagUsages(), nil
	case err != nil:
		return nil, "", exit.Usage("%s; see: hasp-torture --help", describe(err))
	}
	fl.Visit(func(flag *pflag.Flag) {
		if flag.Value.String() == "" {
			err = exit.Usage("--%s is empty: give it a value, or leave it out", flag.Name)
		}
	})
	switch named := f.store != "" || fl.NArg() > 0; {
	case err != nil:
	case fl.NArg() > 1:
		err = exit.Usage("it takes one URL: hasp-torture [flags] [URL]")
	case f.store != "" && fl.NArg() == 1:
		err = exit.Usage("the store is given twice, by --store and as URL")
	case f.local != "" && named:
		err = exit.Usage("--local starts a store, and another is named: leave one of them out")
	case fl.Changed("interval") && f.interval == 0:
		err = exit.Usage("--interval must be at least %s, not 0s", leastInterval)
	case f.duration < time.Second:
		err = exit.Usage("--for must be at least 1s, not %s", f.duration)
	}
	f.store = cmp.Or(f.store, fl.Arg(0), os.Getenv("HASP_STORE"))
	if err == nil && f.store == "" && f.local == "" {
		err = exit.Usage("name a store: hasp-torture [flags] URL; or HASP_STORE; or --local KIND, of %s", strings.Join(localstore.Kinds, ", "))
	}
	if scheme, _, _ := strings.Cut(f.store, ":"); err == nil && f.local == "" && f.adapter == "" && !slices.Contains(driver.Schemes(), scheme) {
		err = exit.Misconfigured("the store must be a URL that begins with one of %s://", strings.Join(driver.Schemes(), ":// "))
	}
	return f, "", err
}

// describe does not quote a value that may be a store's URL.
func describe(err error) string {
	if invalid := (*pflag.InvalidValueError)(nil); errors.As(err, &invalid) {
		return fmt.Sprintf("--%s: %v", invalid.GetFlag().Name, invalid.Unwrap())
	}
	if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) {
		return "unknown flag " + unknown.GetSpecifiedName()
	}
	return err.Error()
}

const examples = `  hasp-torture redis://127.0.0.1
  hasp-torture --for 10m --processes 12 --faults pause,hold postgres://db/x
  hasp-torture --local redis --faults kill,serverrestart,serverforget
  hasp-torture --adapter ./mylock.sh redis://127.0.0.1`

// config checks the flags, before any I/O.
func (f *flags) config() (c torture.Config, err error) {
	c = torture.Config{
		Store: f.store, For: f.duration, Processes: f.processes, Names: f.names, Every: f.interval, Seed: f.seed, TTL: f.ttl, Adapter: f.adapter,
	}
	if f.interval == 0 {
		c.Every = time.Duration(torture.DefaultEvery * float64(c.TTL))
	}
	no := torture.Disturbable(c.Store)
	unserved := errors.New("only a server that was started for the run may be disturbed: see --local")
	if f.local != "" {
		spec, err := localstore.Parse(f.local)
		if err != nil {
			return c, exit.Usage("--local: %v", err)
		}
		no, unserved = nil, nil
		if c.Servers = spec.Servers(); c.Servers == 0 {
			no = errors.New("a file store has no network")
			unserved = errors.New("a file store has no server")
		}
	}
	switch {
	case f.interval != 0 && c.Every < leastInterval:
		return c, exit.Usage("--interval must be at least %s, not %s", leastInterval, c.Every)
	case f.names < 1 || f.names > mostNames:
		return c, exit.Usage("--names must be from 1 to %d, not %d", mostNames, f.names)
	case f.processes < leastProcesses || f.processes > mostProcesses:
		return c, exit.Usage("--processes must be from %d to %d, not %d", leastProcesses, mostProcesses, f.processes)
	case c.TTL < leastTTL:
		return c, exit.Usage("--ttl must be at least %s, not %s: a busy machine would lose locks by itself", leastTTL, c.TTL)
	case f.faults != "":
		if c.Faults, err = torture.ParseKinds(f.faults); err != nil {
			return c, exit.Usage("--faults: %v", err)
		}
	case no != nil:
		c.Faults = torture.Local
	case unserved == nil:
		c.Faults = slices.Concat(torture.Kinds, torture.ServerKinds)
	default:
		c.Faults = torture.Kinds
	}
	for _, k := range c.Faults {
		if unserved != nil && k.OfServer() {
			return c, exit.Usage("--faults %s cannot be made here: %v", k, unserved)
		}
		if no != nil && !k.OfServer() && k != torture.Pause && k != torture.Kill {
			return c, exit.Usage("--faults %s cannot be made here: %v", k, no)
		}
	}
	return c, nil
}

func (f *flags) torture(c torture.Config) (err error) {
	if f.local == "" && !f.yes && !torture.OnThisMachine(c.Store) {
		store := "the store"
		if u, err := url.Parse(f.store); err == nil {
			store = u.Scheme + "://" + u.Host
		}
		return exit.Usage("%s is not on this machine: this loads a store for %s; give --yes if that may be", store, f.duration)
	}
	self, err := os.Executable()
	if err != nil {
		return internal("find this program, to start it again: %w", err)
	}
	c.Open, c.Worker, c.Say = hasp.Open, []string{self, workerVerb}, func(text string) {
		if !f.json {
			tell(text)
		}
	}
	sigs := signals.Catch()
	defer sigs.Close()
	ctx, stop := sigs.Until(context.Background())
	defer func() { _ = stop() }()
	if f.local != "" {
		var store *localstore.Store
		if store, err = startLocal(ctx, f); err != nil {
			return cmp.Or(stop(), err)
		}
		defer func() { err = cmp.Or(err, leftover(store.Close())) }()
		c.Store = store.URL()
		if c.Servers > 0 {
			c.Server = store
		}
	}
	c.Say(fmt.Sprintf("%s with %d processes, faults %s, seed %d", c.For, c.Processes, torture.Join(c.Faults), c.Seed))
	if enough := torture.Enough(c); enough > c.For {
		c.Say(fmt.Sprintf("a run this short may not catch the control, and then says nothing: --for %s has three faults of each kind for it", enough))
	}
	v, err := torture.Run(ctx, c)
	if err != nil {
		why := exit.Of(cmp.Or(stop(), err))
		switch ofWorker := errors.As(why, new(*torture.WorkerError)); {
		case f.adapter != "" && (ofWorker || why.Code == exit.CodeUnreachable):
			why.Code = exit.CodeConfig // what the adapter says of a store is not known
		case ofWorker:
			why.Code = exit.CodeInternal
		}
		return why
	}
	return f.conclude(v)
}

// conclude tells the verdict.
func (f *flags) conclude(v *torture.Verdict) error {
	var err error
	if f.json {
		err = json.NewEncoder(os.Stdout).Encode(v)
	} else {
		_, err = fmt.Print(v.Text())
	}
	if err != nil {
		return internal("standard output: %w", err)
	}
	code := map[torture.Result]int{torture.BrokenResult: codeBroken, torture.Inconclusive: codeInconclusive}[v.Result]
	if code == 0 {
		return nil
	}
	return &exit.Failure{Code: code, Err: errors.New(v.Sentence()), Told: !f.json} // the text has said it
}

func (f *flags) printPlan(plan []torture.Planned) error {
	if f.json {
		return json.NewEncoder(os.Stdout).Encode(plan)
	}
	var b strings.Builder
	for _, p := range plan {
		fmt.Fprintln(&b, p)
	}
	_, err := fmt.Print(b.String())
	return err
}
