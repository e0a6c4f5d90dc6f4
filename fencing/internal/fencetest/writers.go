//go:build unix

package fencetest

import "sync"

// Writers keeps what a fence's Advance returned, for fences whose writes go through that: a
// Resource's Write must use the writer of the first call with its token, as a program does.
// Another Advance would refuse what the write itself has to. The zero value is ready for use.
type Writers[W any] struct{ all sync.Map }

type writerKey struct {
	target, name string
	token        uint64
}

// Get returns the writer of a token, which advance makes the first time.
func (w *Writers[W]) Get(target, name string, token uint64, advance func() (W, error)) (W, error) {
	k := writerKey{target, name, token}
	if known, ok := w.all.Load(k); ok {
		return known.(W), nil
	}
	made, err := advance()
	if err == nil {
		w.all.Store(k, made)
	}
	return made, err
}
