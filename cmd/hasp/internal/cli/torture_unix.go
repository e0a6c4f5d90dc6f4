//go:build unix

package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group"
	"github.com/hasplock/hasp/cmd/hasp/internal/localstore"
	"github.com/hasplock/hasp/cmd/hasp/internal/torture"
	"github.com/spf13/cobra"
)

// Only systems that can stop a process have torture, and its worker, which torture starts and users do not need.
func init() {
	optionalVerbs = append(optionalVerbs, verb{"torture", (*app).tortureCommand}, verb{workerVerb, (*app).workerCommand})
}

func (a *app) workerCommand() *cobra.Command {
	return &cobra.Command{
		Use: workerVerb, Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			surviveClosedPipes()
			if err := torture.Worker(a.stdin, a.stdout, torture.Opener(a.connect)); err != nil {
				return fail(err)
			}
			return nil
		},
	}
}

const workerVerb = "__torture-worker"

type tortureFlags struct {
	storeFlags
	trust     trustFlags // only its TTL
	duration  span
	processes int
	faults    string
	adapter   string
	seed      uint64
	local     string
	names     int
	interval  span
	html      string
	yes, dry  bool
}

// The bounds of a run. Each process has four locks at a time, and a proxy.
const (
	leastProcesses = 2
	mostProcesses  = 64
	mostNames      = 64
	leastTTL       = 500 * time.Millisecond
	leastInterval  = 10 * time.Millisecond
)

const tortureManual = `Prove the store's locks on the store itself: start --processes clients that
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
on this machine is asked about first (--yes). What was locked is released at the
end, also after Ctrl-C; what a killed process held expires. docs/TORTURE.md says
how to read the verdict, and what it cannot show.

Exit code 0: every promise held and the control was caught. 1: a promise is
broken; the record is kept, and its directory named. 77: inconclusive.`

func (a *app) tortureCommand() *cobra.Command {
	f := tortureFlags{duration: span{d: time.Minute, min: time.Second}, interval: span{min: 1}}
	f.trust.ttl = span{d: 2 * time.Second, min: 1}
	c := &cobra.Command{
		Use:   "torture [flags] [URL]",
		Short: "stop, cut off and kill clients of the store, and judge what they believed",
		Long:  tortureManual,
		Example: `  hasp torture redis://127.0.0.1
  hasp torture --for 10m --processes 12 --faults pause,hold postgres://db/x
  hasp torture --local redis --faults kill,serverrestart,serverforget
  hasp torture --adapter ./mylock.sh redis://127.0.0.1`,
	}
	fs := c.Flags()
	f.add(fs, "as one JSON object")
	fs.Var(&f.duration, "for", "how long to go on")
	fs.Var(&f.trust.ttl, "ttl", "the TTL to ask for")
	fs.IntVar(&f.processes, "processes", 6, fmt.Sprintf("how many clients contend (`N`, %d to %d)", leastProcesses, mostProcesses))
	fs.StringVar(&f.faults, "faults", "", "which `FAULTS`, with commas between (default: all that the store's kind allows)")
	fs.IntVar(&f.names, "names", torture.DefaultNames, fmt.Sprintf("how many names they contend for (`N`, 1 to %d)", mostNames))
	fs.Var(&f.interval, "interval", "the mean time between two faults of clients (default: half the TTL)")
	fs.StringVar(&f.local, "local", "", "start a store on this machine for the run, of a `KIND` that is installed, and disturb it, too")
	fs.StringVar(&f.adapter, "adapter", "", "the `COMMAND` of a program that is the lock under test, in place of hasp's locks")
	fs.Uint64Var(&f.seed, "seed", 0, "the `NUMBER` that the plan is drawn from (default: a random one, which is printed)")
	fs.BoolVarP(&f.yes, "yes", "y", false, "do not ask before a store that is not on this machine")
	fs.StringVar(&f.html, "html", "", "write a page with timelines to this `FILE` as well; it needs no network")
	fs.BoolVar(&f.dry, "dry-run", false, "print the plan of faults and do nothing")
	return a.verb(c, func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return usage("torture takes one URL: %s", cmd.UseLine())
		}
		if len(args) == 1 {
			if a.storeFrom == "--store" {
				return usage("the store is given twice, by --store and as URL")
			}
			_ = f.store.Set(args[0])
			if f.adapter == "" {
				if err := f.store.checkScheme(); err != nil {
					return err
				}
			}
		}
		if f.local != "" && (len(args) == 1 || a.storeFrom == "--store") {
			return usage("--local starts a store, and another is named: leave one of them out")
		}
		if !cmd.Flags().Changed("seed") {
			f.seed = uint64(rand.Uint32())
		}
		return a.torture(&f)
	})
}

// config checks the flags, before any I/O.
func (f *tortureFlags) config() (c torture.Config, err error) {
	c = torture.Config{
		Store: f.store.String(), For: f.duration.d, Processes: f.processes, Names: f.names, Every: f.interval.d, Seed: f.seed, TTL: f.trust.ttl.d, Adapter: f.adapter,
	}
	if !f.interval.set {
		c.Every = time.Duration(torture.DefaultEvery * float64(c.TTL))
	}
	no := torture.Disturbable(c.Store)
	unserved := errors.New("only a server that was started for the run may be disturbed: see --local")
	if f.local != "" {
		spec, err := localstore.Parse(f.local)
		if err != nil {
			return c, usage("--local: %v", err)
		}
		no, unserved = nil, nil
		if c.Servers = spec.Servers(); c.Servers == 0 {
			no = errors.New("a file store has no network")
			unserved = errors.New("a file store has no server")
		}
	}
	switch {
	case f.interval.set && c.Every < leastInterval:
		return c, usage("--interval must be at least %s, not %s", leastInterval, c.Every)
	case f.names < 1 || f.names > mostNames:
		return c, usage("--names must be from 1 to %d, not %d", mostNames, f.names)
	case f.processes < leastProcesses || f.processes > mostProcesses:
		return c, usage("--processes must be from %d to %d, not %d", leastProcesses, mostProcesses, f.processes)
	case c.TTL < leastTTL:
		return c, usage("--ttl must be at least %s, not %s: a busy machine would lose locks by itself", leastTTL, c.TTL)
	case f.faults != "":
		if c.Faults, err = torture.ParseKinds(f.faults); err != nil {
			return c, usage("--faults: %v", err)
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
			return c, usage("--faults %s cannot be made here: %v", k, unserved)
		}
		if no != nil && !k.OfServer() && k != torture.Pause && k != torture.Kill {
			return c, usage("--faults %s cannot be made here: %v", k, no)
		}
	}
	return c, nil
}

func (a *app) torture(f *tortureFlags) (err error) {
	c, err := f.config()
	if err != nil {
		return err
	}
	if f.dry {
		return a.printPlan(f, torture.Plan(c))
	}
	if f.local == "" && !f.yes && !torture.OnThisMachine(c.Store) {
		if err := a.consent(f); err != nil {
			return err
		}
	}
	page, err := newPage(f.html)
	if err != nil {
		return misconfigured("--html: %w", err)
	}
	defer page.discard()
	self, err := os.Executable()
	if err != nil {
		return &failure{code: exitInternal, outcome: outcomeInternal, err: fmt.Errorf("find this program, to start it again: %w", err)}
	}
	c.Worker, c.Say = []string{self, workerVerb}, func(text string) {
		if !f.json {
			a.tell(text)
		}
	}
	c.Open = func(ctx context.Context, url string, opts ...hasp.Option) (*hasp.Client, error) {
		return a.open(ctx, &f.storeFlags, opts...)
	}
	ctx, stop := interruptible()
	defer stop()
	if f.local != "" {
		var store *localstore.Store
		if store, err = a.startLocal(ctx, f); err != nil {
			return err
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
		return noVerdict(f, interruption(ctx, err))
	}
	return a.tellVerdict(f, v, page.write(v))
}

// noVerdict is why a run has none.
func noVerdict(f *tortureFlags, err error) error {
	why := fail(err)
	switch {
	case why.code != exitUnreachable:
	case f.adapter != "": // what it says of a store is not known
		why.code, why.outcome = exitConfig, outcomeConfig
	case errors.As(err, new(*torture.WorkerError)):
		why.code, why.outcome = exitInternal, outcomeInternal
	}
	return why
}

// tellVerdict tells it also if the page could not be written: it took long. Its exit code is of more use than the page's.
func (a *app) tellVerdict(f *tortureFlags, v *torture.Verdict, unwritten error) error {
	err := a.conclude(f, v)
	if unwritten == nil {
		return err
	}
	unwritten = fmt.Errorf("--html: %w", unwritten)
	if err != nil {
		a.tell(unwritten.Error())
		return err
	}
	return &failure{code: exitInternal, outcome: outcomeInternal, err: unwritten}
}

func (a *app) conclude(f *tortureFlags, v *torture.Verdict) (err error) {
	if f.json {
		err = a.printJSON(v)
	} else {
		err = a.print("%s", v.Text())
	}
	switch {
	case err != nil:
		return err
	case v.Result == torture.BrokenResult:
		return &failure{code: exitNo, outcome: outcomeNo, err: errors.New(v.Sentence()), told: !f.json}
	case v.Result == torture.Inconclusive:
		return &failure{code: exitInconclusive, outcome: outcomeInconclusive, err: errors.New(v.Sentence()), told: !f.json}
	}
	return nil
}

func (a *app) printPlan(f *tortureFlags, plan []torture.Planned) error {
	if f.json {
		return a.printJSON(plan)
	}
	var b strings.Builder
	for _, p := range plan {
		fmt.Fprintln(&b, p)
	}
	return a.print("%s", b.String())
}

// consent asks the person at the terminal. Without one it refuses.
func (a *app) consent(f *tortureFlags) error {
	store := f.store.public()
	if !a.tty || !group.IsTerminal(a.stdin) {
		return usage("%s is not on this machine: torture loads a store for %s; give --yes if that may be", clean(store), f.duration.d)
	}
	_, _ = fmt.Fprintf(a.stderr, "hasp: %s is not on this machine. Load it for %s, on names that no other client uses? [y/N] ", clean(store), f.duration.d)
	answer, err := bufio.NewReader(a.stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return usage("no answer: %v", err)
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return usage("not begun")
	}
	return nil
}
