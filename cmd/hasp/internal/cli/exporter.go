//go:build !noexporter && !fileonly

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/cmd/hasp/internal/exporter"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/spf13/cobra"
)

func init() { optionalVerbs = append(optionalVerbs, verb{"exporter", (*app).exporterCommand}) }

type exporterFlags struct {
	storeFlags
	listen, prefix string
	maxNames       int
	timeout        duration
}

func (a *app) exporterCommand() *cobra.Command {
	f := exporterFlags{timeout: duration{d: 5 * time.Second, min: time.Millisecond}}
	c := &cobra.Command{
		Use:   "exporter [flags] [NAME...]",
		Short: "serve the queues of a store to Prometheus",
		Long: `Serve metrics of the locks that are in use, or of the NAMEs, to Prometheus: at
/metrics how many hold and wait, for how long, evictions, and whether the store
grants nothing because it may have forgotten locks. Each scrape reads every queue
once, as hasp who does. What cannot be read in time says hasp_queue_up 0 and
hasp_exporter_success 0; the exporter goes on, also if the store is down when it
starts. /healthz answers as long as the exporter does.

A store does not tell a lost lock from a released one: programs count their losses
themselves (package promhasp). docs/METRICS.md describes all metrics, and
docs/grafana/hasp.json shows them.

Each name makes separate series in Prometheus. Give a PREFIX in a store where
names come and go; beyond --max-names, hasp_exporter_names_left_out counts.

Anybody who can reach the address can read the names of the locks. INT or TERM
ends it, with exit code 0.`,
		Example: `  hasp exporter --store redis://cache.example.com --prefix deploy/
  hasp exporter --listen :9747 nightly leader   # beyond this machine`,
	}
	fs := c.Flags()
	f.store.Add(fs)
	fs.StringVar(&f.listen, "listen", "127.0.0.1:9747", "the `ADDRESS` to listen at; port 0 takes a free one")
	fs.StringVar(&f.prefix, "prefix", "", "only names that begin with `PREFIX`")
	fs.IntVar(&f.maxNames, "max-names", 200, "read at most `N` names, in the order of the alphabet")
	fs.Var(&f.timeout, "timeout", "how long a scrape may take; or nine tenths of the scraper's, if that is shorter")
	return a.verb(c, func(cmd *cobra.Command, args []string) error {
		if err := f.check(args); err != nil {
			return err
		}
		return a.serveMetrics(args, &f)
	})
}

func (f *exporterFlags) check(names []string) error {
	for _, name := range names {
		if err := checkName(name); err != nil {
			return err
		}
	}
	_, _, err := net.SplitHostPort(f.listen)
	switch {
	case err != nil:
		return exit.Usage("--listen: %s is not an address such as 127.0.0.1:9747", view.Quote(f.listen))
	case f.maxNames < 1:
		return exit.Usage("--max-names must be greater than zero")
	case len(names) > f.maxNames:
		return exit.Usage("%d names are more than --max-names (%d)", len(names), f.maxNames)
	case len(names) > 0 && f.prefix != "":
		return exit.Usage("--prefix and names exclude each other")
	}
	return nil
}

func (a *app) serveMetrics(names []string, f *exporterFlags) error {
	ctx, stop := interruptible()
	defer stop()
	label, _, _ := strings.Cut(f.store.Public(), "?")
	e := exporter.New(exporter.Options{
		Store: label, Names: names, Prefix: f.prefix, MaxNames: f.maxNames, Timeout: f.timeout.d,
		Open: func(ctx context.Context) (*hasp.Client, error) {
			c, err := a.open(ctx, &f.storeFlags)
			if err != nil || len(names) > 0 {
				return c, err
			}
			if _, lists := c.Backend().(driver.Namer); !lists {
				_ = c.Close()
				return nil, exit.Misconfigured("%s cannot list its names: say which, as in hasp exporter NAME", c.Backend())
			}
			return c, nil
		},
		Tell: a.tellScrapes,
	})
	defer e.Close()
	listener, err := net.Listen("tcp", f.listen)
	if err != nil {
		return exit.Misconfigured("--listen: %w", err)
	}
	defer listener.Close()
	// A first look tells a mistake in the settings before Prometheus does. A store that is down is
	// none: it may start after us.
	if _, err := e.Scrape(ctx); ctx.Err() == nil && err != nil && exit.Of(err).Code == exit.CodeConfig {
		f := exit.Of(err)
		f.Told = true
		return f
	}
	a.tell(fmt.Sprintf("metrics of %s at http://%s/metrics", view.Clean(label), listener.Addr()))
	return a.serve(ctx, e.Handler(), listener, f.timeout.d)
}

// tellScrapes says once that scrapes fail, not every few seconds.
func (a *app) tellScrapes(err error) {
	if err == nil {
		a.tell("the store can be read again")
		return
	}
	a.tell(fmt.Sprintf("scrapes fail: %v", err))
}

// serve answers until a signal comes, and finishes what has begun.
func (a *app) serve(ctx context.Context, h http.Handler, l net.Listener, timeout time.Duration) error {
	const slow = 10 * time.Second // for a request, and for a reader of the answer
	s := &http.Server{Handler: h, ReadTimeout: slow, WriteTimeout: timeout + slow, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: log.New(io.Discard, "", 0)} // of what clients do wrong
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	select {
	case err := <-ended:
		return &exit.Failure{Code: exit.CodeInternal, Outcome: exit.OutcomeInternal, Err: fmt.Errorf("serve: %w", err)}
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return &exit.Failure{Code: exit.CodeInternal, Outcome: exit.OutcomeInternal, Err: fmt.Errorf("serve: %w", err)}
	}
	return nil
}
