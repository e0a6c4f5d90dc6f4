// Command cron runs a job exactly once per slot, though every machine starts it at the same time.
// The same line is in the crontab of each:
//
//	0 3 * * *  cron -report /srv/report.txt
//
// To try it: go run ./cron & go run ./cron & wait
//
// A lock alone gives "one at a time": the second machine runs the job again when the first is
// done, and a machine that dies in the middle leaves it half done. Exactly once needs two more
// things. What was done is recorded, and the record is looked at under the lock. And the job's
// effect and its record are one step: here both are a line of the report, which is replaced as a
// whole. If the effect is a mail, the step cannot be one: then choose between a record before it
// (at most once) and after it (at least once).
//
// The report is on one machine's disk, and the fence is a file beside it. On several machines it
// would be a table: see the example inventory.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/examples/internal/store"
	"github.com/hasplock/hasp/fencing/filefence"
)

var report = flag.String("report", filepath.Join(os.TempDir(), "hasp-report.txt"), "the file that the job writes")
var slot = flag.String("slot", time.Now().UTC().Truncate(time.Minute).Format(time.RFC3339), "which run this is; the same on all machines")

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	store.Exit(run(ctx))
}

func run(ctx context.Context) error {
	c, err := store.Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	// Do waits: if the one ahead dies in the middle, this one does the job.
	return c.Do(ctx, "cron/report", once, hasp.Note(*slot))
}

// once runs under the lock. ctx ends when the lock is lost, or when we are told to stop.
func once(ctx context.Context) error {
	lease, _ := hasp.LeaseFrom(ctx)
	// First: an earlier holder that was paused in the middle can no longer replace the file.
	fence, err := filefence.With(ctx, *report, lease, nil)
	if err != nil {
		return err
	}
	done, err := os.ReadFile(*report)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if strings.Contains("\n"+string(done), "\n"+*slot+" ") {
		fmt.Println("done before:", *slot)
		return nil
	}
	line := fmt.Sprintf("%s by pid %d\n", *slot, os.Getpid()) // the job is here
	if err := fence.Replace(ctx, strings.NewReader(string(done)+line)); err != nil {
		return err // a *fencing.StaleError: the lock was lost, and the next holder has begun
	}
	fmt.Println("done:", *slot)
	return nil
}
