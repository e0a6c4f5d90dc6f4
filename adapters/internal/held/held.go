// Package held keeps the leases of libraries whose Unlock has nothing but a name.
package held

import (
	"sync"

	"github.com/hasplock/hasp"
)

// Leases are what this process holds, by name. The zero value is empty.
//
// A name has more than one lease for a moment after a loss: a second goroutine has the lock, and
// the first has not unlocked. They are taken in the order in which they were put, so that the
// first Unlock gets the lost one, and does not free the lock under the second goroutine.
type Leases struct {
	mu     sync.Mutex
	byName map[string][]*hasp.Lease
}

// Put adds a lease.
func (l *Leases) Put(name string, lease *hasp.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byName == nil {
		l.byName = map[string][]*hasp.Lease{}
	}
	l.byName[name] = append(l.byName[name], lease)
}

// Take removes the oldest lease of a name and returns it, or nil.
func (l *Leases) Take(name string) *hasp.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.byName[name]
	switch len(all) {
	case 0:
		return nil
	case 1:
		delete(l.byName, name)
	default:
		l.byName[name] = all[1:]
	}
	return all[0]
}
