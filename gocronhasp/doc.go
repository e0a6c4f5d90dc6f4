// Package gocronhasp lets several machines share the jobs of github.com/go-co-op/gocron
// with a hasp lock: either each run of a job takes the job's lock ([NewLocker]), or one
// machine leads and runs them all ([NewElector]).
//
//	locker := gocronhasp.NewLocker(client, hasp.MinHold(5*time.Second))
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//
// Which to choose: with the locker the work is spread over the machines, and each run needs
// the store; with the elector one machine has all of it, jobs with state in memory keep it,
// and a run needs no store.
package gocronhasp
