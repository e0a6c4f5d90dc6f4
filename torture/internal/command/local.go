//go:build unix

package command

import (
	"context"
	"errors"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/hasplock/hasp/torture/internal/localstore"
)

// startLocal has the store in use be one that runs for as long as the run.
func startLocal(ctx context.Context, f *flags) (*localstore.Store, error) {
	spec, err := localstore.Parse(f.local)
	if err != nil {
		return nil, exit.Usage("--local: %v", err)
	}
	store, err := localstore.Start(ctx, spec, func(ctx context.Context, url string) error {
		c, err := hasp.Open(ctx, url)
		if err != nil {
			return err
		}
		_, err = c.Inspect(ctx, "hasp-torture") // ZooKeeper's client connects later
		if errors.Is(err, hasp.ErrUnsupported) {
			err = nil
		}
		return errors.Join(err, c.Close())
	})
	if err != nil {
		return nil, exit.Misconfigured("--local %s: %w", f.local, err)
	}
	return store, nil
}

// leftover is an error about what --local leaves behind, if it does.
func leftover(err error) error {
	if err == nil {
		return nil
	}
	return internal("--local: end the server and remove its data: %w", err)
}
