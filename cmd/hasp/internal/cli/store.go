package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/exit"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/signals"
	"github.com/hasplock/hasp/driver"
)

// answerBound is how long the verbs that only ask give the store.
const answerBound = 10 * time.Second

// openAtLeast is how long opening a file store may take where --wait is shorter, and with
// --no-wait: it takes milliseconds, except with a foreign flock or a process that was stopped while
// it prepared the store. A distant server gets answerBound.
const openAtLeast = 2 * time.Second

// openOnce opens the store for a verb that waits for most; until is when that is over, or zero
// for a wait without end. Connecting does not count as waiting, or --wait 50ms would be useless
// with a distant server; but what takes longer than that does count. An attempt ends after
// answerBound, so that persist can tell that there is no answer.
func (a *app) openOnce(ctx context.Context, f *storeFlags, most duration, opts ...hasp.Option) (c *hasp.Client, until time.Time, err error) {
	if !most.set {
		c, err = a.open(ctx, f, opts...)
		return c, until, err
	}
	free := answerBound
	if f.store.Scheme() == "file" {
		free = openAtLeast
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, max(min(most.d, answerBound), free))
	defer cancel()
	c, err = a.open(ctx, f, opts...)
	opened := time.Now()
	return c, opened.Add(most.d - max(0, opened.Sub(began)-free)), err
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
	if f.store.Assumed && exit.Of(err).Code == exit.CodeConfig {
		return fmt.Errorf("%w; this is the default store of this user: set HASP_STORE (or --store, or store in a configuration file) to one that can be used, file:///some/directory say", err)
	}
	return err
}
