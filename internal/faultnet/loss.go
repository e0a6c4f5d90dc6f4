package faultnet

// loss is an armed Lose. After it has struck it belongs to one pipe.
type loss struct {
	dir   Direction
	left  int // chunks to swallow before the cut
	match func(chunk []byte) bool
	cut   chan struct{} // closed when the connection it struck has ended
}

// Lose waits for the next chunk that a client sends and match accepts (nil: any), on
// whichever connection it comes, and strikes that connection once:
//
//   - Lose(Down, n, match) lets the request through and swallows the next n chunks that
//     come back. The server did what was asked, and the client cannot know.
//   - Lose(Up, n, match) swallows the request itself and what follows it, n chunks in
//     all. The server was never asked, and the client cannot know.
//
// Then the connection is cut with a FIN to both sides, and the returned channel closes;
// it also closes if the struck connection ends in another way before that. It never
// closes if nothing matches: wait with a time limit. n < 1 counts as 1. With n at
// math.MaxInt there is no cut: the connection falls silent until the client gives it up.
//
// It is bound to a request rather than to "the next answer", because a connection also
// carries pings, renewals and pushes, and a test could not say which of them it lost. To
// lose answers without a cut, drop the direction: Set(Down, Rule{Mode: Drop}).
//
// match is called with the proxy's lock held: it must not call the proxy, nor keep chunk.
func (p *Proxy) Lose(dir Direction, n int, match func(chunk []byte) bool) (cut <-chan struct{}) {
	l := &loss{dir: dir, left: max(n, 1), match: match, cut: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.losses = append(p.losses, l)
	return l.cut
}

// strike gives the first loss that accepts a client's chunk to the connection it came
// on. It runs before the chunk is queued, so the server cannot have answered it yet, and
// no answer to it slips through. A connection already struck in that direction is passed
// over: the loss stays armed for the next one. p.mu is held.
func (p *Proxy) strike(l *link, chunk []byte) {
	for i, armed := range p.losses {
		victim := l.pipes[armed.dir]
		if victim.losing != nil || armed.match != nil && !armed.match(chunk) {
			continue
		}
		victim.losing = armed
		p.losses = append(p.losses[:i:i], p.losses[i+1:]...)
		return
	}
}
