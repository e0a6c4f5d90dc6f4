package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
)

// isMe recognises this process's entries, by process and host and not by id: during the wait the
// library has not reported the id yet.
func isMe(e hasp.Entry) bool {
	host, _ := os.Hostname()
	return e.Owner.PID == os.Getpid() && e.Owner.Host == host
}

// noteFor is the part of a command that others see: its base name and its first argument, if that
// is a plain word such as "deploy" in "make deploy". Never more: arguments may contain secrets, and
// every client that may lock can read the queue.
func noteFor(argv []string) string {
	note := filepath.Base(argv[0])
	if len(argv) > 1 && plainWord(argv[1]) {
		note += " " + argv[1]
	}
	return strings.ToValidUTF8(note[:min(len(note), 200)], "?")
}

// plainWord is lower-case letters with '-' or '_' between them, and short: few secrets are.
func plainWord(s string) bool {
	if s == "" || len(s) > 20 || s[0] == '-' || s[0] == '_' {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz-_") == ""
}

// reasonBound is how long a loss waits for its reason. The command has been told by then.
const reasonBound = 2 * time.Second

// explainLoss adds to a loss who has taken the lock away and why, where that is how it was lost and
// where the store keeps it. The store writes it in the same step as it removes the entry, so it is
// there when the loss is noticed.
func explainLoss(c *hasp.Client, g *commandLease, lost error) error {
	ctx, cancel := context.WithTimeout(context.Background(), reasonBound)
	defer cancel()
	for _, l := range g.leases {
		var how *hasp.LostError
		if !errors.As(l.Err(), &how) || how.Reason == hasp.ReasonExpired {
			continue
		}
		e, err := c.LastEviction(ctx, l.Name())
		if err != nil || e == nil || e.ID != l.ID() {
			continue // the loss itself is known, and the rest is for people
		}
		why := ""
		if e.Why != "" {
			why = ": " + view.Clean(e.Why)
		}
		return fmt.Errorf("%w; %s took it away%s", lost, view.Owner(e.By), why)
	}
	return lost
}
