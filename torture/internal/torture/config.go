//go:build unix

package torture

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hasplock/hasp"
)

// Kind is a kind of fault.
type Kind string

// The faults. Those of the client touch no server. Those of the server are for one that was started
// for this run.
const (
	Pause   Kind = "pause"   // the process is stopped for longer than the TTL, and goes on
	Hold    Kind = "hold"    // nothing passes for longer than the TTL; then all arrives, late
	AckLoss Kind = "ackloss" // the store does what it was asked, and its answer is lost
	Cut     Kind = "cut"     // every connection is reset
	Kill    Kind = "kill"    // the process is killed

	ServerPause   Kind = "serverpause"   // the server is stopped for longer than the TTL, and goes on
	ServerRestart Kind = "serverrestart" // the server is killed, and started with its data
	ServerForget  Kind = "serverforget"  // the server is killed, and started with the data of before the run
)

// Kinds are all faults of a client, Local those that need no network between it and the store, and
// ServerKinds those of a server.
var (
	Kinds       = []Kind{Pause, Hold, AckLoss, Cut, Kill}
	Local       = []Kind{Pause, Kill}
	ServerKinds = []Kind{ServerPause, ServerRestart, ServerForget}
)

// OfServer reports whether the fault is one of a server.
func (k Kind) OfServer() bool { return slices.Contains(ServerKinds, k) }

// ParseKinds reads a list with commas. Each kind counts once.
func ParseKinds(text string) (kinds []Kind, err error) {
	for word := range strings.SplitSeq(text, ",") {
		k := Kind(strings.TrimSpace(word))
		if !slices.Contains(Kinds, k) && !k.OfServer() {
			return nil, fmt.Errorf("%q is no fault; there are %s", string(k), Join(slices.Concat(Kinds, ServerKinds)))
		}
		if !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	return kinds, nil
}

// Join is the inverse of ParseKinds.
func Join(kinds []Kind) string {
	var words []string
	for _, k := range kinds {
		words = append(words, string(k))
	}
	return strings.Join(words, ",")
}

// Opener opens a store, as hasp.Open does.
type Opener func(ctx context.Context, storeURL string, opts ...hasp.Option) (*hasp.Client, error)

// Server has the servers of a run's store, where the run may disturb them. The number is that of
// one server, from 0.
type Server interface {
	Pause(int) error
	Resume(int) error
	Restart(int) error // kill -9, and started with its data
	Save() error       // what Forget starts with; once, before the first
	Forget(int) error

	// MayForget reports whether the store may grant again what it had granted before it was
	// restarted, or forgot.
	MayForget(restart, hasps bool) bool
}

// Config has the settings of a run. All fields but Server, Servers and Adapter are required.
type Config struct {
	Store     string // URL
	For       time.Duration
	Processes int
	Names     int // that they contend for, besides the control's: more make more acquisitions, with fewer waiters on each
	Faults    []Kind
	Every     time.Duration // between two faults of clients, on average; as far as enough processes are undisturbed
	Seed      uint64
	TTL       time.Duration // to ask for; the store may grant another
	Server    Server        // nil: its faults cannot be made
	Servers   int           // how many it has
	Adapter   string        // a command for sh: the lock under test; "": hasp's

	Open   Opener
	Worker []string          // the program and its arguments that make a process a worker
	Say    func(text string) // progress, in words
}

// Defaults of Names, and of Every in TTLs.
const (
	DefaultNames = 3
	DefaultEvery = 0.55
)
