//go:build unix

package fencetest

import "sync"

// Writers keeps the writers that a fence's With returned: a Resource's Write must use the writer of the first call with its token, as a program does. Another
// With would refuse the stale token, but the write itself must refuse it. The zero value is
// ready for use.
type Writers[W any] struct{ all sync.Map }

type writerKey struct {
	target, name string
	token        uint64
}

// Get returns the writer of a token; at the first call with makes it.
func (w *Writers[W]) Get(target, name string, token uint64, with func() (W, error)) (W, error) {
	k := writerKey{target, name, token}
	if known, ok := w.all.Load(k); ok {
		return known.(W), nil
	}
	made, err := with()
	if err == nil {
		w.all.Store(k, made)
	}
	return made, err
}
