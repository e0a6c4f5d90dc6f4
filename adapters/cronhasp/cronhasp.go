// Package cronhasp has several machines share the jobs of github.com/robfig/cron: each run of a job
// takes a hasp lock, and a machine that finds it held skips the run.
//
//	job := cron.NewChain(cronhasp.Locked(client, "report", nil, hasp.MinHold(30*time.Second))).
//		Then(cron.FuncJob(report))
//	c.AddJob("17 3 * * *", job)
//
// Give MinHold a time that is longer than the difference of the machines' clocks and shorter than
// the job's interval: otherwise a machine whose clock is late finds the lock free again, and runs
// a short job a second time. Jobs of cron have no context: a job that must stop at a loss takes its
// lock itself, with hasp.Client.Do. At the end wait for <-c.Stop().Done() before hasp.Client.Close:
// a run that is under way, or still has MinHold to wait for, releases its lock.
package cronhasp

import (
	"context"
	"errors"
	"log/slog"

	"github.com/robfig/cron/v3"

	"github.com/hasplock/hasp"
)

// Locked returns a wrapper for one job, whose lock is name. failed (nil: slog.Default at level
// Error) is told why a run was skipped if it is not that another machine has the lock, and of
// locks that were lost during a run. Runs of one machine exclude each other as well.
func Locked(c *hasp.Client, name string, failed func(error), opts ...hasp.LockOption) cron.JobWrapper {
	if failed == nil {
		failed = func(err error) { slog.Error("cronhasp", "job", name, "error", err) }
	}
	return func(job cron.Job) cron.Job {
		return cron.FuncJob(func() {
			lease, err := c.Mutex(name, opts...).TryLock(context.Background())
			if errors.Is(err, hasp.ErrBusy) {
				return
			}
			if err != nil {
				failed(err)
				return
			}
			defer func() { // also after a panic, which cron's Recover may catch
				if err := lease.Release(context.Background()); err != nil {
					failed(err)
				}
			}()
			job.Run()
		})
	}
}
