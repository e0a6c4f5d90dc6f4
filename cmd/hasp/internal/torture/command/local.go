//go:build unix

package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/localstore"
	"github.com/hasplock/hasp/cmd/hasp/internal/torture"
)

// startLocal has the store in use be one that runs for as long as the run.
func startLocal(ctx context.Context, f *flags) (*localstore.Store, error) {
	spec, err := localstore.Parse(f.local)
	if err != nil {
		return nil, usage("--local: %v", err)
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
		return nil, interruption(ctx, &failure{codeConfig, fmt.Errorf("--local %s: %w", f.local, err)})
	}
	return store, nil
}

// leftover is an error about what --local leaves behind, if it does.
func leftover(err error) error {
	if err == nil {
		return nil
	}
	return &failure{codeInternal, fmt.Errorf("--local: end the server and remove its data: %w", err)}
}

// page is the file of --html. It is made before the run, which takes long, and gets its name when
// it is complete.
type page struct {
	path string
	file *os.File // nil: none is wanted, or it has its name
}

func newPage(path string) (*page, error) {
	if path == "" {
		return &page{}, nil
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file", strconv.Quote(path))
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".hasp-torture-*")
	if err != nil {
		return nil, err
	}
	return &page{path, file}, nil
}

func (p *page) write(v *torture.Verdict) error {
	if p.file == nil {
		return nil
	}
	w := bufio.NewWriter(p.file)
	err := errors.Join(v.WriteHTML(w), w.Flush(), p.file.Chmod(0o644), p.file.Close())
	if err == nil {
		err = os.Rename(p.file.Name(), p.path)
	}
	if err == nil {
		p.file = nil
	}
	return err
}

func (p *page) discard() {
	if p.file != nil {
		_ = p.file.Close()
		_ = os.Remove(p.file.Name()) // it is ours, and incomplete
	}
}
