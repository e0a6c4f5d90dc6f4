// Command deploy runs a command on each machine, on no more than n machines at once: a rolling
// deploy, started everywhere at the same time.
//
//	deploy -at-once 2 -- systemctl restart web
//
// To try it: go run ./deploy -- date & go run ./deploy -- date & wait
//
// A machine whose command hangs would stop the others for ever, since its process lives and renews
// the lease. MaxHold bounds that: the lease ends, the command is killed, and the permit goes to the
// next machine. The machine that was late reports an error, and stays as the command has left it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/examples/internal/store"
)

var (
	atOnce  = flag.Int64("at-once", 1, "machines at once")
	maxHold = flag.Duration("max-hold", 10*time.Minute, "how long one machine may take")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	store.Exit(run(ctx, flag.Args()))
}

func run(ctx context.Context, command []string) error {
	if len(command) == 0 {
		return errors.New("usage: deploy [flags] -- COMMAND [ARGUMENT...]")
	}
	c, err := store.Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()

	turns := c.Semaphore("deploy", *atOnce, hasp.MaxHold(*maxHold), hasp.Note(command[0]))
	// work ends when the turn is lost, or has lasted too long, or when we are told to stop.
	return hasp.Do(ctx, turns.Locker(1), func(work context.Context) error {
		cmd := exec.CommandContext(work, command[0], command[1:]...) // killed when work ends
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w", command[0], err)
		}
		return nil
	})
}
