// Command hasp-mcp gives coding agents locks, as a server of the Model Context Protocol on standard
// input and output.
//
//	hasp-mcp [-store URL] [-max-hold 1h]
//
// Without -store or HASP_STORE, and with git as either, the locks are in the repository of the
// working directory: all worktrees of a clone share them. Otherwise file:///dir, or
// hasp+https://host:7070 of a hasp serve, which reaches every other store.
//
// It has four tools: acquire, release, who and list. A tool call that has to wait for long is given
// up by many agents, so acquire returns within a bound, with the place in the queue, and the place
// stays: the next acquire goes on where the last one ended. Subagents share one server: each says
// who it is, and one that asks for what another has waits in line.
//
// All locks and places end with the process, which ends with its standard input, or with a signal.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/hasplock/hasp"
	_ "github.com/hasplock/hasp/filelock"
	_ "github.com/hasplock/hasp/httplock"
	"github.com/hasplock/hasp/internal/repository"
)

func main() {
	store := flag.String("store", os.Getenv("HASP_STORE"), "URL of the store; default: HASP_STORE, else the git repository of the working directory")
	maxHold := flag.Duration("max-hold", time.Hour, "how long an agent may hold a lock; 0: for as long as it lives")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *store, *maxHold); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "hasp-mcp:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, store string, maxHold time.Duration) error {
	if store == "" || store == "git" { // as the command hasp calls it
		var err error
		if store, err = repository.Store("."); err != nil {
			return fmt.Errorf("%w: name a store by -store or HASP_STORE", err)
		}
	}
	d := newDesk(maxHold)
	c, err := hasp.Open(ctx, store, hasp.WithObserver(d))
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w; to lock elsewhere: -store file:///dir, or hasp+https://host:7070", err)
	}
	if err != nil {
		return err
	}
	defer c.Close()
	d.client = c
	s := mcp.NewServer(&mcp.Implementation{Name: "hasp", Title: "Locks between agents", Version: "0.1.0"}, &mcp.ServerOptions{Instructions: instructions})
	d.addTools(s)
	return s.Run(ctx, &mcp.StdioTransport{}) // returns when standard input ends
}

const instructions = `Locks that exclude other agents, worktrees and machines. Before you use something that others may
be using (a test database, a port, a device, git push, a file that is generated), acquire a lock that is named after it, and
release it as soon as you are done. If acquire says "waiting", your place in the queue is kept: do other work, or call acquire
again with the same name and holder. Never work without the lock because waiting takes long.`
