//go:build !unix

package cli

// run refuses; checkRunnable has done so before, without asking for the lock.
func (*task) run() ending { return ending{notStarted: errNoCommands} }
