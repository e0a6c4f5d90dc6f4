//go:build unix

package command

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/hasplock/hasp/cmd/hasp/internal/torture"
)

// page is the file of --html. It is made before the run, which takes long, and gets its name when it is complete.
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
