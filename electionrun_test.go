package hasp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// running is a Run in the background.
func running(ctx context.Context, c *hasp.Client, lead func(context.Context, *hasp.Term) error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- c.Election("boss").Run(ctx, []byte("me"), lead) }()
	return done
}

// untilEnd leads until its context ends.
func untilEnd(ctx context.Context, _ *hasp.Term) error {
	<-ctx.Done()
	return ctx.Err()
}

// A signal ends the term in order: the function first, then the lead, then Run; the next leads at
// once.
func TestRunEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		mine := errors.New("SIGTERM")
		for what, x := range map[string]struct{ returns, want error }{
			"nothing":         {nil, mine},
			"the context's":   {context.Canceled, mine},
			"the cause":       {mine, mine},
			"its own failure": {errNetwork, errNetwork},
		} {
			ctx, cancel := context.WithCancelCause(t.Context())
			began := make(chan struct{})
			done := running(ctx, c, func(ctx context.Context, term *hasp.Term) error {
				close(began)
				if l, ok := hasp.LeaseFrom(ctx); !ok || l != term.Lease {
					t.Errorf("the context tells of %v, %t", l, ok)
				}
				<-ctx.Done()
				wantErr(t, context.Cause(ctx), mine)
				time.Sleep(time.Minute) // it ends in order
				if leader, err := other.Election("boss").Leader(t.Context()); err != nil || string(leader.Value) != "me" || !term.Held() {
					t.Errorf("%s leads, %v; held %t, before the function has returned", leader.Value, err, term.Held())
				}
				return x.returns
			})
			<-began
			cancel(mine)
			err := <-done
			wantErr(t, err, x.want)
			if (x.want == mine) != errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", what, err)
			}
			if n := entries(t, other, "boss"); n != 0 {
				t.Errorf("%s: %d entries left", what, n)
			}
		}
		// Also while it waits.
		lock(t, other, "boss")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErr(t, <-running(ctx, c, untilEnd), context.DeadlineExceeded)
		synctest.Wait()
		if n := entries(t, other, "boss"); n != 1 {
			t.Errorf("%d entries, want the other's", n)
		}
	})
}

// The terms of one Run follow each other, although the function takes its time after a loss, and in
// each the function is told of the loss before another may lead.
func TestRunLeadsAgainAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		ctx, cancel := context.WithCancel(t.Context())
		var inside atomic.Int32
		var tokens []uint64
		term := make(chan *hasp.Term)
		done := running(ctx, c, func(ctx context.Context, t1 *hasp.Term) error {
			if n := inside.Add(1); n != 1 {
				t.Errorf("%d terms at once", n)
			}
			defer inside.Add(-1)
			tokens = append(tokens, t1.Token())
			term <- t1
			<-ctx.Done()
			if len(tokens) < 3 {
				wantErr(t, context.Cause(ctx), hasp.ErrLost)
				time.Sleep(10 * time.Minute) // does not want to end
				return errors.New("a consequence of the loss")
			}
			return nil
		})
		<-term
		b.plan("keepalive", plan{err: errNetwork}) // the store is out of reach
		time.Sleep(trust)
		if inside.Load() != 1 {
			t.Error("the function has ended")
		}
		b.heal("keepalive")
		<-term
		evict(t, b, "boss") // an operator, after which others lead
		between, err := other.Election("boss").Campaign(t.Context(), []byte("other"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		between.Unlock()
		<-term
		cancel()
		wantErr(t, <-done, context.Canceled)
		if len(tokens) != 3 || tokens[0] >= tokens[1] || tokens[1] >= between.Token() || between.Token() >= tokens[2] {
			t.Errorf("tokens %v, and %d between the last two", tokens, between.Token())
		}
	})
}

// An error that tells of the loss of another lock is one of the function's own, in a term that was
// not lost.
func TestRunEndsWithALossElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, _ := pair(t)
		done := running(t.Context(), c, func(ctx context.Context, _ *hasp.Term) error {
			return c.Do(ctx, "batch", func(ctx context.Context) error {
				evict(t, b, "batch")
				<-ctx.Done()
				return context.Cause(ctx)
			})
		})
		var lost *hasp.LostError
		if err := <-done; !errors.As(err, &lost) || lost.Name != "batch" {
			t.Errorf("Run has ended with %v", err)
		}
	})
}

// A fence may refuse a write before the store has told of the loss. The release finds out.
func TestRunTakesAStaleWriteForALoss(t *testing.T) {
	goesOnAfter(t, errors.New("stale"), plan{loseAnswer: driver.ErrGone, times: 1})
}

// The store falls silent, and the leader's function is the first to notice, with an error that it
// makes itself. What became of the term is not known, and the candidate goes on.
func TestRunGoesOnAfterAnUnknownEnd(t *testing.T) {
	goesOnAfter(t, errNetwork, plan{err: errNetwork, times: 100})
}

// goesOnAfter demands a second term after one that ended with the function's error, and whose
// release went by the plan.
func goesOnAfter(t *testing.T, failure error, leave plan) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b, c, _ := pair(t)
		ctx, cancel := context.WithCancel(t.Context())
		terms := 0
		done := running(ctx, c, func(ctx context.Context, term *hasp.Term) error {
			if terms++; terms == 2 {
				cancel()
				return nil
			}
			b.plan("leave", leave)
			return failure
		})
		wantErr(t, <-done, context.Canceled)
		if terms != 2 {
			t.Errorf("%d terms", terms)
		}
	})
}

func TestRunResignsAtAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		var left context.Context
		func() {
			defer func() {
				if recover() != "oops" {
					t.Error("the panic was swallowed")
				}
			}()
			_ = c.Election("boss").Run(t.Context(), nil, func(ctx context.Context, _ *hasp.Term) error {
				left = ctx
				panic("oops")
			})
		}()
		if n := entries(t, other, "boss"); n != 0 || left.Err() == nil {
			t.Errorf("%d entries after a panic, the context has ended: %v", n, left.Err())
		}
	})
}

// nil gives the others a turn, after a pause; an error is the program's to judge.
func TestRunAfterTheFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		mine := errors.New("mine")
		var ends []time.Time
		err := <-running(t.Context(), c, func(context.Context, *hasp.Term) error {
			if n := len(ends); n > 0 && n < 21 {
				pause := time.Since(ends[n-1])
				if least := min(10*time.Millisecond<<n, 2*time.Second) / 2; pause < least || pause > 2*time.Second {
					t.Errorf("pause %d: %s, want %s to 2s", n, pause, least)
				}
			}
			switch len(ends) {
			case 20:
				time.Sleep(10 * time.Second) // a good term
			case 21:
				if pause := time.Since(ends[20]); pause > 20*time.Millisecond {
					t.Errorf("pause after a good term: %s", pause)
				}
				return mine
			}
			ends = append(ends, time.Now())
			return nil
		})
		wantErr(t, err, mine)
		if n := entries(t, other, "boss"); n != 0 || len(ends) != 21 {
			t.Errorf("%d entries left after %d terms", n, len(ends))
		}
	})
}

// What cannot succeed is told at once.
func TestRunThatCannotLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, _ := pair(t)
		never := func(context.Context, *hasp.Term) error { t.Error("it leads"); return nil }
		run := func(c *hasp.Client, name string, value []byte) error {
			return c.Election(name).Run(t.Context(), value, never)
		}
		wantErr(t, c.Election("a").Run(t.Context(), nil, nil), hasp.ErrInvalid)
		wantErr(t, c.Election("a").Run(noContext, nil, never), hasp.ErrInvalid)
		wantErr(t, run(c, "", nil), hasp.ErrInvalid)
		wantErr(t, run(c, "a", make([]byte, 2000)), hasp.ErrInvalid)
		if n := b.opens.Load(); n != 0 {
			t.Error("the store was asked")
		}
		wantErr(t, run(client(t, valueless{b.Backend}), "a", nil), hasp.ErrUnsupported)
		held := lock(t, c, "a")
		wantErr(t, c.Election("a").Run(held.Context(), nil, never), hasp.ErrDeadlock)
		if _, err := c.Semaphore("s", 2).Acquire(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		wantErr(t, run(c, "s", nil), hasp.ErrMismatch)
		b.plan("enqueue", plan{err: fmt.Errorf("%w: read-only", driver.ErrRefused)})
		wantErr(t, run(c, "b", nil), hasp.ErrRefused)
		c.Close()
		wantErr(t, run(c, "a", nil), hasp.ErrClosed)
		b.plan("open", plan{err: fmt.Errorf("%w: %w: wrong password", driver.ErrRefused, driver.ErrInvalid)})
		wantErr(t, run(client(t, b), "a", nil), hasp.ErrRefused)
	})
}

// valueless is a store without elections.
type valueless struct{ driver.Backend }

func (v valueless) Traits() driver.Traits {
	t := v.Backend.Traits()
	t.Values = false
	return t
}

// A store that starts after the candidate, is away for a day, or refuses during a failover.
func TestRunOutlastsOutages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var buf bytes.Buffer
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&buf, nil)))
		defer slog.SetDefault(before)

		b, c, _ := pair(t)
		b.plan("open", plan{err: errNetwork})
		ctx, cancel := context.WithCancel(t.Context())
		term := make(chan *hasp.Term)
		done := running(ctx, c, func(ctx context.Context, t1 *hasp.Term) error {
			term <- t1
			return untilEnd(ctx, t1)
		})
		time.Sleep(24 * time.Hour)
		synctest.Wait() // the log is written by the candidate
		if n := b.opens.Load(); n > 24*3600 {
			t.Errorf("%d attempts in a day", n)
		}
		if !strings.Contains(buf.String(), "lock=boss") {
			t.Errorf("not logged: %q", buf.String())
		}
		b.heal("open")
		<-term

		b.plan("enqueue", plan{err: fmt.Errorf("%w: read-only", driver.ErrRefused)})
		evict(t, b, "boss")
		time.Sleep(time.Minute)
		b.heal("enqueue")
		<-term
		cancel()
		wantErr(t, <-done, context.Canceled)
	})
}

// The client is closed under the leader: the function ends first, then Run, which says why.
func TestRunOnAClientThatIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, _ := pair(t)
		began := make(chan struct{})
		done := running(t.Context(), c, func(ctx context.Context, term *hasp.Term) error {
			close(began)
			return untilEnd(ctx, term)
		})
		<-began
		c.Close()
		wantErr(t, <-done, hasp.ErrClosed)
	})
}
