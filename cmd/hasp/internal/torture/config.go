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

// The faults. All happen at the client: no server is touched.
const (
	Pause   Kind = "pause"   // the process is stopped for longer than the TTL, and goes on
	Hold    Kind = "hold"    // nothing passes for longer than the TTL; then all arrives, late
	AckLoss Kind = "ackloss" // the store does what it was asked, and its answer is lost
	Cut     Kind = "cut"     // every connection is reset
	Kill    Kind = "kill"    // the process is killed
)

// Kinds are all faults, and Local those that need no network between client and store.
var (
	Kinds = []Kind{Pause, Hold, AckLoss, Cut, Kill}
	Local = []Kind{Pause, Kill}
)

// ParseKinds reads a list with commas. Each kind counts once.
func ParseKinds(text string) (kinds []Kind, err error) {
	for word := range strings.SplitSeq(text, ",") {
		k := Kind(strings.TrimSpace(word))
		if !slices.Contains(Kinds, k) {
			return nil, fmt.Errorf("%q is no fault; there are %s", string(k), Join(Kinds))
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

// Config has the settings of a run. All fields but Adapter are required.
type Config struct {
	Store     string // URL
	For       time.Duration
	Processes int
	Faults    []Kind
	Seed      uint64
	TTL       time.Duration // to ask for; the store may grant another
	Adapter   string        // a command for sh: the lock under test; "": hasp's

	Open   Opener
	Worker []string          // the program and its arguments that make a process a worker
	Say    func(text string) // progress, in words
}

// nameCount is how many names the workers contend for, besides the control's. More names would
// make more acquisitions at once and fewer waiters on each.
const nameCount = 3
