package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/spf13/cobra"
)

// diagnosis is the output of doctor.
type diagnosis struct {
	Store     string           `json:"store"`
	Connected float64          `json:"connected_ms"` // how long opening took
	Round     float64          `json:"lock_unlock_ms"`
	TTL       string           `json:"ttl"` // granted
	Promises  []promise        `json:"promises"`
	Findings  []driver.Finding `json:"findings"`
}

type promise struct {
	Name string `json:"name"`
	Kept bool   `json:"kept"`
	Text string `json:"text"`
}

func (a *app) doctorCommand() *cobra.Command {
	var f storeFlags
	var t trustFlags
	c := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "examine the store: what it promises, and which settings are unsafe",
		Long: `Connect to the store, take and release a separate lock, and report what the
store promises, the TTL it grants, and every setting that weakens or breaks a
promise, with the remedy. Exit code 78 if a promise is broken.`,
	}
	f.add(c.Flags(), "as a JSON object")
	t.ttl.min = 1
	c.Flags().Var(&t.ttl, "ttl", "the TTL to ask for (default 10s)")
	return a.verb(c, with(noWord, func(string) error { return a.doctor(&f, &t) }))
}

func (a *app) doctor(f *storeFlags, t *trustFlags) error {
	ctx, stop := interruptible()
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	began := time.Now()
	client, err := a.open(ctx, f, t.options()...)
	if err != nil {
		return err
	}
	defer client.Close()
	d := diagnosis{Store: client.Store(), Connected: millis(time.Since(began)), Findings: []driver.Finding{}}
	if err := d.examine(ctx, client); err != nil {
		return exit.Of(interruption(ctx, err))
	}
	if other := a.settings.Elsewhere(); f.store.Assumed && other != "" {
		d.Findings = append(d.Findings, driver.Finding{
			Level: driver.Warn, Subject: "default store",
			Text: "XDG_STATE_HOME is set here, and this user's other processes have locked in " + other + ", as those of cron do, where it is not set",
			Cure: "name one store for all, by HASP_STORE or in the configuration file",
		})
	}
	if f.json {
		err = a.printJSON(d)
	} else {
		err = a.print("%s", d.text())
	}
	if err != nil {
		return err
	}
	for _, finding := range d.Findings {
		if finding.Level == driver.Bad {
			return exit.Misconfigured("this store breaks a promise; see the findings")
		}
	}
	return nil
}

func (d *diagnosis) examine(ctx context.Context, client *hasp.Client) error {
	traits := client.Traits()
	d.Promises = promises(traits)
	err := d.tryLock(ctx, client)
	if busy := (*hasp.BusyError)(nil); errors.As(err, &busy) && busy.Quarantine > 0 {
		d.TTL, err = "not tried: the store grants nothing at the moment", nil
	}
	if errors.Is(err, driver.ErrReadOnly) {
		d.TTL, err = "not tried: this user may only look at the store", nil
	}
	refused := err
	if !errors.Is(err, driver.ErrRefused) && err != nil {
		return err
	}
	if x, ok := client.Backend().(driver.Diagnoser); ok {
		found, err := x.Diagnose(ctx)
		if err != nil && !errors.Is(err, driver.ErrUnsupported) && refused == nil {
			return fmt.Errorf("examine %s: %w", d.Store, exit.Within(err))
		}
		d.Findings = append(d.Findings, found...)
	}
	if refused == nil {
		return nil
	}
	if !slices.ContainsFunc(d.Findings, func(f driver.Finding) bool { return f.Level == driver.Bad }) {
		return refused
	}
	d.TTL = "not tried: " + refused.Error() // the findings say which right is missing
	return nil
}

// tryLock takes a lock and releases it.
func (d *diagnosis) tryLock(ctx context.Context, client *hasp.Client) error {
	began := time.Now()
	// A name that no other client can have: a diagnosis must not block any user of the store.
	lease, err := client.Mutex("hasp-doctor-" + strings.ToLower(rand.Text())).TryLock(ctx)
	if err != nil {
		return err
	}
	d.TTL = "none: nothing expires while the process lives"
	if deadline := lease.Deadline(); !deadline.IsZero() {
		d.TTL = fmt.Sprintf("trusted for %s without renewal", time.Until(deadline).Round(10*time.Millisecond))
	}
	if err := lease.Release(ctx); err != nil {
		return err
	}
	d.Round = millis(time.Since(began))
	return nil
}

func promises(t driver.Traits) []promise {
	liveness := map[driver.Liveness]string{
		driver.Leased:          "a lock ends when it is not renewed in time: a long pause loses it",
		driver.ConnectionBound: "a lock lasts as long as the connection: a stopped holder keeps it",
		driver.ProcessBound:    "a lock lasts as long as the holder's process: it cannot be lost",
	}[t.Liveness]
	return []promise{
		{"fifo", t.FIFO, "first come, first served"},
		{"shared", t.Shared, "read-write locks"},
		{"counting", t.Counting, "semaphores"},
		{"fencing", t.Fencing, "fencing tokens that grow from grant to grant"},
		{"values", t.Values, "elections with a published value"},
		{"push", t.Push, "waiters are woken by the store, without polling"},
		{t.Liveness.String(), true, liveness},
	}
}

func (d *diagnosis) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "store      %s\nconnected  in %.1f ms, lock and unlock %.1f ms\nttl        %s\n", d.Store, d.Connected, d.Round, d.TTL)
	for _, p := range d.Promises {
		kept := "yes"
		if !p.Kept {
			kept = "NO"
		}
		fmt.Fprintf(&b, "promise    %-3s  %s: %s\n", kept, p.Name, p.Text)
	}
	for _, f := range d.Findings {
		fmt.Fprintf(&b, "%-9s  %s: %s\n", f.Level, view.Clean(f.Subject), view.Clean(f.Text))
		if f.Cure != "" {
			fmt.Fprintf(&b, "  cure     %s\n", view.Clean(f.Cure))
		}
	}
	return b.String()
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
