package zklock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"
)

// fourLetterWord sends one of the four-letter commands to one server and returns its reply. The
// client library has this, too, but not over TLS.
func (b *backend) fourLetterWord(ctx context.Context, server, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, b.opts.ConnectTimeout)
	defer cancel()
	c, err := b.opts.dial(ctx, server)
	if err != nil {
		return "", fmt.Errorf("%s: %w", server, err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })() // ends what waits below
	if _, err := io.WriteString(c, command); err != nil {
		return "", fmt.Errorf("%s: %w", server, err)
	}
	reply, err := io.ReadAll(io.LimitReader(c, 1<<20))
	if err != nil {
		return "", fmt.Errorf("%s: %w", server, err)
	}
	return string(reply), nil
}

// silent reports that a server has ended a connection, or left it open, without a word. One that
// expects TLS waits for more than four letters.
func silent(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, os.ErrDeadlineExceeded)
}

// tlsAlert is how a server that expects TLS begins its complaint.
const tlsAlert = 21

// notAllowed reports whether the server has answered that the command is not allowed.
func notAllowed(reply string) bool { return strings.Contains(reply, "not in the whitelist") }

// greet returns when one of the servers has said what only a ZooKeeper server says, or an
// error when each has said something else. Whether it serves is not asked: an ensemble
// that elects its leader at the moment will be back.
func (b *backend) greet(ctx context.Context) error {
	errs := make(chan error, len(b.servers)) // one slot each: the first good one is enough
	for _, server := range b.servers {
		go func() {
			reply, err := b.fourLetterWord(ctx, server, "srvr")
			switch {
			case silent(err), err == nil && (reply == "" || reply[0] == tlsAlert):
				err = fmt.Errorf("%s: it accepted the connection and said nothing%s", server, silenceCauses)
			case err == nil && !strings.Contains(reply, "Zookeeper") && !strings.Contains(reply, "ZooKeeper") && !notAllowed(reply):
				err = fmt.Errorf("%s: not a ZooKeeper server", server)
			}
			errs <- err
		}()
	}
	var all []error
	for range b.servers {
		err := <-errs
		if err == nil {
			return nil
		}
		all = append(all, err)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(all...)
}
