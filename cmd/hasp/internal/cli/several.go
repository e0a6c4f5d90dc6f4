package cli

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/settings"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/spf13/pflag"
)

// commandLease is the lock of a command: one lease, or those of several locks as one.
type commandLease struct {
	hasp.Hold
	leases   []*hasp.Lease // in the order in which the user named the locks
	numbered bool          // the user named them by -l
	slot     int           // of a pool; -1: it is of none
}

func leaseOf(l *hasp.Lease) *commandLease {
	return &commandLease{Hold: l, leases: []*hasp.Lease{l}, slot: -1}
}

// leaseOfAll puts the leases into the order of the names: LockAll takes them in its own.
func leaseOfAll(m *hasp.MultiLease, names []string) *commandLease {
	all := &commandLease{Hold: m, slot: -1}
	for _, name := range names {
		for _, l := range m.Leases() {
			if l.Name() == name {
				all.leases = append(all.leases, l)
			}
		}
	}
	return all
}

// locks describes the locks, in that order.
func (all *commandLease) locks() []view.Lock {
	var locks []view.Lock
	for _, l := range all.leases {
		locks = append(locks, view.Lock{Name: l.Name(), Token: l.Token(), Holder: l.ID()})
	}
	return locks
}

// only is the lease if there is one, and nil if there are several.
func (all *commandLease) only() *hasp.Lease {
	if len(all.leases) == 1 {
		return all.leases[0]
	}
	return nil
}

// title is how messages and records call several locks.
func title(names []string) string { return strings.Join(names, ", ") }

func addLocks(fs *pflag.FlagSet, locks *[]string) {
	fs.StringArrayVarP(locks, "lock", "l", nil, "a lock's `NAME`, in place of the NAME before --; several times for several locks, all or none")
}

// choiceFlags have run take one of several locks.
type choiceFlags struct {
	any   bool
	slots int
}

func (f *choiceFlags) add(fs *pflag.FlagSet) {
	fs.BoolVar(&f.any, "any", false, "take one of several NAMEs before --, the first that is free; HASP_NAME says which")
	fs.IntVar(&f.slots, "slots", 0, "take one of `N` slots, the locks NAME/0 to NAME/N-1; HASP_SLOT says which")
}

func (f *choiceFlags) check(fs *pflag.FlagSet, l *lockFlags, locks []string) error {
	switch {
	case fs.Changed("slots") && (f.slots < 1 || f.slots > 1<<16):
		return exit.Usage("--slots must be 1 to %d, not %d", 1<<16, f.slots)
	case f.any && f.slots > 0, (f.any || f.slots > 0) && len(locks) > 0, f.slots > 0 && (l.shared || l.permits.n > 0):
		return exit.Usage("--any, --slots and -l exclude each other, and each slot is a lock for one: no --shared, no --permits")
	}
	return nil
}

// slotNames are the locks of which --slots takes one, in another order for each run: so that many
// who ask at once seldom meet.
func slotNames(name string, n int) (names []string, err error) {
	for _, i := range rand.Perm(n) {
		names = append(names, name+"/"+strconv.Itoa(i))
	}
	return names, checkName(name + "/" + strconv.Itoa(n-1))
}

// lockVariables are those about the locks. A value of "" removes the variable: those of an outer
// lock must not stay, even where these locks have no value.
func (a *app) lockVariables(locks []view.Lock, withNumbers bool, deadline *time.Time) map[string]string {
	own := map[string]string{}
	for _, name := range settings.OfLock(a.settings.Environ()) {
		own[name] = ""
	}
	set := func(l view.Lock, suffix string) {
		own["HASP_NAME"+suffix], own["HASP_HOLDER"+suffix] = l.Name, l.Holder
		if l.Token != 0 {
			own["HASP_TOKEN"+suffix] = strconv.FormatUint(l.Token, 10)
		}
	}
	for i, l := range locks {
		if withNumbers {
			set(l, "_"+strconv.Itoa(i+1))
		}
		if len(locks) == 1 { // which of several would it be?
			set(l, "")
		}
	}
	if deadline != nil {
		own["HASP_DEADLINE"] = deadline.Format(time.RFC3339Nano)
	}
	return own
}

// expiry is the deadline of the locks; nil where nothing expires.
func expiry(l hasp.Hold) *time.Time {
	d := l.Deadline()
	if d.IsZero() {
		return nil
	}
	return &d
}
