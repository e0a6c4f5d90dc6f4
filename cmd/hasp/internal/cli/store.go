package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/hasplock/hasp/internal/signals"
)

// answerBound is how long the verbs that only ask give the store.
const answerBound = 10 * time.Second

const (
	// openAtLeast is how long opening a store may take where --wait is shorter, and a file store's
	// with --no-wait: that takes milliseconds, except with a foreign flock or a process that was
	// stopped while it prepared the store. A distant server gets answerBound with --no-wait.
	openAtLeast = 2 * time.Second

	// openFree is how much of that does not count as waiting.
	openFree = time.Second

	// lookBound is how long the last look at who holds may take: what was to end is over.
	lookBound = time.Second

	// closeBound is how long a store that has not answered the last look may take to close. What is
	// left in it ends with its TTL.
	closeBound = 200 * time.Millisecond
)

// openOnce opens the store for a verb that waits for most; until is when that is over, or zero
// for a wait without end. Connecting does not count as waiting, or --wait 50ms would be useless
// with a distant server; but what takes longer than that does count, so that a store which hangs
// keeps no caller for much longer than was said. An attempt ends after answerBound, so that persist can
// tell that there is no answer.
func (a *app) openOnce(ctx context.Context, f *storeFlags, most duration, opts ...hasp.Option) (c *hasp.Client, until time.Time, err error) {
	if !most.set {
		c, err = a.open(ctx, f, opts...)
		return c, until, err
	}
	bound := max(min(most.d+openFree, answerBound), openAtLeast)
	if most.d == 0 && f.store.Scheme() != "file" {
		bound = answerBound
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	c, err = a.open(ctx, f, opts...)
	opened := time.Now()
	free := max(openFree, openAtLeast-most.d)
	return c, opened.Add(most.d - max(0, opened.Sub(began)-free)), err
}

// closeSoon closes a client whose store does not answer.
func closeSoon(c *hasp.Client) {
	closed := make(chan struct{})
	go func() {
		c.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(closeBound):
	}
}

// waitUntil is ctx with the end of a wait, as openWaiting returns it. There is at least one look,
// also with --wait 0.
func waitUntil(ctx context.Context, until time.Time) (context.Context, context.CancelFunc) {
	if until.IsZero() {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, max(time.Until(until), time.Millisecond), errWaitOver)
}

// open connects to the store in use.
func (a *app) open(ctx context.Context, f *storeFlags, opts ...hasp.Option) (*hasp.Client, error) {
	c, err := a.connect(ctx, f.store.String(), opts...)
	if err != nil {
		return nil, exit.Of(interruption(ctx, a.hint(f, err)))
	}
	return c, nil
}

// interruptible is for the verbs that run no command: a context that ends with a signal.
func interruptible() (ctx context.Context, stop func()) {
	s := signals.Catch()
	ctx, cancel := s.Until(context.Background())
	return ctx, func() {
		_ = cancel() // the verb has seen it by ctx, or was done
		s.Close()
	}
}

// interruption returns the signal that ended ctx, if one did, and err otherwise.
func interruption(ctx context.Context, err error) error {
	var in signals.Interrupted
	if errors.As(context.Cause(ctx), &in) {
		return in
	}
	return err
}

// hint adds to the error of opening a store what a user of the command can do about it.
func (a *app) hint(f *storeFlags, err error) error {
	if a.settings.Withheld(&f.store) && errors.Is(err, driver.ErrRefused) {
		return fmt.Errorf("%w; this hasp runs under another, which keeps the store's credentials from its command: add --pass-credentials to the outer one", err)
	}
	if f.store.OfGit && exit.Of(err).Code == exit.CodeConfig {
		return fmt.Errorf("%w; this is the store of the repository: where its git directory cannot be used, name another one to all who work on it, HASP_STORE=file:///some/directory say", err)
	}
	if f.store.Assumed && exit.Of(err).Code == exit.CodeConfig {
		return fmt.Errorf("%w; this is the default store of this user: set HASP_STORE (or --store, or store in a configuration file) to one that can be used, file:///some/directory say", err)
	}
	return err
}
