package metering_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/memlock"
	"github.com/hasplock/hasp/metering"
)

// What an event comes to is one of the values its counter begins with.
func TestOutcome(t *testing.T) {
	wrapped := fmt.Errorf("release: %w", hasp.ErrLost)
	for _, c := range []struct {
		event hasp.Event
		want  string
		of    []string
	}{
		{hasp.Event{Kind: hasp.EventAcquired}, "acquired", metering.Acquisitions},
		{hasp.Event{Kind: hasp.EventFailed, Err: hasp.ErrBusy}, "busy", metering.Acquisitions},
		{hasp.Event{Kind: hasp.EventFailed, Err: &hasp.BusyError{Err: hasp.ErrQuarantine}}, "failed", metering.Acquisitions},
		{hasp.Event{Kind: hasp.EventFailed, Err: hasp.ErrClosed}, "failed", metering.Acquisitions},
		{hasp.Event{Kind: hasp.EventReleased}, "confirmed", metering.Releases},
		{hasp.Event{Kind: hasp.EventReleased, Err: wrapped}, "lost", metering.Releases},
		{hasp.Event{Kind: hasp.EventReleased, Err: hasp.ErrUnknown}, "unknown", metering.Releases},
		{hasp.Event{Kind: hasp.EventLost, Err: &hasp.LostError{Reason: hasp.ReasonClockJump}}, "clock jump", metering.Losses},
		{hasp.Event{Kind: hasp.EventRenewed}, "ok", metering.Renewals},
		{hasp.Event{Kind: hasp.EventRenewed, Err: errors.New("no answer")}, "failed", metering.Renewals},
		{hasp.Event{Kind: hasp.EventWaiting}, "", []string{""}},
		{hasp.Event{Kind: hasp.EventRequeued}, "", []string{""}},
	} {
		if got := metering.Outcome(c.event); got != c.want || !slices.Contains(c.of, got) {
			t.Errorf("%s, %v: %q, want %q of %q", c.event.Kind, c.event.Err, got, c.want, c.of)
		}
	}
}

// Losses are all the reasons that hasp declares: a missing one begins with its first event, which
// then triggers no alert.
func TestLosses(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if of, ok := v.Type.(*ast.Ident); ok && of.Name == "Reason" {
			text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			declared = append(declared, text)
		}
		return true
	})
	losses := slices.Sorted(slices.Values(metering.Losses))
	if slices.Sort(declared); len(declared) == 0 || !slices.Equal(declared, losses) {
		t.Errorf("errors.go declares %q, Losses has %q", declared, losses)
	}
}

// foreign lists a queue of another library's, which does not say since when it waits.
type foreign struct{ driver.Backend }

func (foreign) List(_ context.Context, name string, _ int) ([]driver.Entry, error) {
	entry := driver.Entry{Request: driver.Request{Name: name, Units: driver.Whole, Capacity: driver.Whole}}
	return []driver.Entry{entry, entry}, nil
}

// A waiter that does not say when it began has not waited for centuries.
func TestLengthsOfAnotherLibrary(t *testing.T) {
	c, err := hasp.New(foreign{memlock.New().Backend()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	metering.Lengths(t.Context(), c, 0, []string{"a"}, func(_ string, l metering.Length, err error) {
		if want := (metering.Length{Holders: 1, Waiters: 1}); err != nil || l != want {
			t.Errorf("%+v, %v, want %+v", l, err, want)
		}
	})
}
