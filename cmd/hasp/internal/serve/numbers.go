package serve

// numbersKept is how far a number may be behind the highest one to be told from one that was used.
const numbersKept = 8192

// numbers remembers which numbers a session has used for its locks, in bounded memory: a window
// below the highest, like that against replayed packets in IPsec (RFC 4303).
//
// It is for a request that the network delivers late. A client has given a lock back, the answer
// has come, and then its first request, which the client has given up long ago, comes out of a
// proxy: a lock that is made then has no owner, and is kept alive with the rest of the session.
// What is below the window counts as used. Its client is told that the lock is gone, and takes the
// next number.
//
// Most sessions have a lock or two: the window grows with the highest number.
type numbers struct {
	top            uint64
	used, released []uint64 // bits, up to numbersKept of them
}

func (n *numbers) at(i uint64) (word, bit uint64) {
	i %= numbersKept
	return i / 64, 1 << (i % 64)
}

// grow makes room for the bits of a number.
func (n *numbers) grow(i uint64) {
	words := int(min(i, numbersKept-1))/64 + 1
	n.used = append(n.used, make([]uint64, max(words-len(n.used), 0))...)
	n.released = append(n.released, make([]uint64, max(words-len(n.released), 0))...)
}

// free reports whether the number can be used for a new lock.
func (n *numbers) free(i uint64) bool {
	if i > n.top {
		return true
	}
	word, bit := n.at(i)
	return n.top-i < numbersKept && (word >= uint64(len(n.used)) || n.used[word]&bit == 0)
}

// use marks the number.
func (n *numbers) use(i uint64) {
	n.grow(max(i, n.top))
	if i > n.top {
		for j := max(n.top, i-min(i, numbersKept)) + 1; j <= i; j++ { // what leaves the window makes room
			word, bit := n.at(j)
			n.used[word] &^= bit
			n.released[word] &^= bit
		}
		n.top = i
	}
	if n.top-i < numbersKept {
		word, bit := n.at(i)
		n.used[word] |= bit
	}
}

// release notes that the store has confirmed the lock's release.
func (n *numbers) release(i uint64) {
	if word, bit := n.at(i); i <= n.top && n.top-i < numbersKept && word < uint64(len(n.released)) {
		n.released[word] |= bit
	}
}

// wasReleased reports a lock that the store has confirmed as released: the answer to that was lost
// if it is asked again.
func (n *numbers) wasReleased(i uint64) bool {
	word, bit := n.at(i)
	return i <= n.top && n.top-i < numbersKept && word < uint64(len(n.released)) && n.released[word]&bit != 0
}
