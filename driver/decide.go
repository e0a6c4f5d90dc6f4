package driver

// Decide is the admission rule, for drivers that read the queue and decide in the
// client: me holds iff the units ahead plus its own fit into its capacity.
//
// ahead are the entries with a smaller Seq, oldest first. If me does not hold,
// blockers are the shortest run of entries directly ahead that denies it on its own:
// while all of them stay, the answer cannot change, and when one leaves it may. A
// waiter therefore watches its blockers and nothing else. For a mutex that is the
// predecessor; for a reader the nearest writer and what stands behind it; for a
// semaphore of n at most n entries. Watching only the predecessor would be wrong as
// soon as capacity exceeds one: another holder may leave first, and no waiter wakes.
//
// Units are clamped into 1..Capacity, so that a malformed foreign entry can delay,
// but neither overflow the sum nor vanish from it.
func Decide(ahead []Entry, me Request) (held bool, blockers []Entry) {
	free := me.Capacity - me.Units
	for i := len(ahead) - 1; i >= 0; i-- {
		u := min(max(ahead[i].Units, 1), me.Capacity)
		if u > free {
			return false, ahead[i:]
		}
		free -= u
	}
	return free >= 0, nil
}

// CheckKind compares the capacity of me with that of the entries ahead and returns an
// error wrapping ErrMismatch if they differ: a semaphore of 3 and one of 5 under one
// name would each count wrongly.
func CheckKind(ahead []Entry, me Request) error {
	for _, e := range ahead {
		if e.Capacity != me.Capacity {
			return &MismatchError{Name: me.Name, Want: me.Capacity, Found: e.Capacity}
		}
	}
	return nil
}

// First returns the first limit entries, or all if limit is 0: what List is asked for, for
// drivers that read a queue as a whole.
func First(entries []Entry, limit int) []Entry {
	if limit > 0 && limit < len(entries) {
		return entries[:limit]
	}
	return entries
}
