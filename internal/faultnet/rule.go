package faultnet

import (
	"bytes"
	"time"
)

// Direction is one of the two ways through a connection.
type Direction int

const (
	// Up is from the client to the server: openings and requests.
	Up Direction = iota
	// Down is from the server to the client: answers and pushes.
	Down
)

func (d Direction) String() string {
	if d == Up {
		return "client->server"
	}
	return "server->client"
}

func (d Direction) other() Direction { return 1 - d }

// Mode says whether a direction delivers.
type Mode int

const (
	// Pass delivers.
	Pass Mode = iota
	// Hold keeps everything, in order, until the mode changes. The sender notices nothing
	// before 4 MiB are waiting; then its own buffers fill, as behind a full TCP window.
	Hold
	// Drop swallows everything. A connection that has lost a byte stays silent in this
	// direction until it is cut, even after the mode has changed: no TCP stream has a hole
	// in its middle, and a client confused by one would show a fault that cannot happen.
	// What remains is the half-open connection that keepalives exist for.
	Drop
)

// Rule says how one direction of every connection is disturbed. The zero Rule is a perfect network.
type Rule struct {
	Mode Mode

	// Delay and Jitter: what arrives at the proxy is delivered Delay plus a random part
	// of Jitter later, never before what came earlier on the same connection. Both count
	// from the arrival: a change of rule applies to what is already waiting.
	Delay, Jitter time.Duration

	// Slice > 0 writes at most that many bytes at a time, with a pause of about a
	// millisecond in between, so that the reader gets messages in crumbs.
	Slice int

	// Most > 0 delivers that many bytes from the call of Set on, of all connections together, and
	// holds what follows. A limit of bytes per second would depend on how often the proxy runs.
	Most int64
}

// sliceGap is the least pause between slices. Without one the receiver's kernel puts the
// crumbs together again before a reader wakes: 14 bytes then came in two or three pieces.
// Timers make it a millisecond or more; a shorter wait would have to burn a processor.
const sliceGap = 100 * time.Microsecond

// Set puts a rule in force for a direction: for live connections, for what already waits
// on them, and for new ones. What is being written at this moment may still arrive.
func (p *Proxy) Set(dir Direction, r Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setLocked(dir, r)
}

func (p *Proxy) setLocked(dir Direction, r Rule) {
	p.rules[dir], p.passed[dir] = r, 0
	for l := range p.links {
		poke(l.pipes[dir].wake)
	}
}

// Partition holds both directions: nothing arrives, and no side gets an error.
func (p *Proxy) Partition() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setLocked(Up, Rule{Mode: Hold})
	p.setLocked(Down, Rule{Mode: Hold})
}

// Heal makes the network perfect: both directions pass, everything held is delivered,
// losses that have not struck are disarmed, and connections that lost bytes are cut, since
// they could not work any more. It does not undo Refuse or Rebuff.
func (p *Proxy) Heal() {
	p.mu.Lock()
	p.losses = nil
	p.setLocked(Up, Rule{})
	p.setLocked(Down, Rule{})
	var holed []*link
	for l := range p.links {
		if l.pipes[Up].holed || l.pipes[Down].holed {
			holed = append(holed, l)
		}
	}
	p.mu.Unlock()
	for _, l := range holed {
		l.end(byFIN)
	}
}

// Cut ends every live connection with a FIN to both sides, as a process that exits does.
// What was waiting in the proxy is lost.
func (p *Proxy) Cut() { p.endAll(byFIN) }

// Reset ends every live connection with a RST to both sides, as a machine that restarted
// does. What was waiting in the proxy is lost.
func (p *Proxy) Reset() { p.endAll(byRST) }

func (p *Proxy) endAll(how ending) {
	for _, l := range p.live() {
		l.end(how)
	}
}

// Contains is a match for Lose: chunks that contain text.
func Contains(text string) func(chunk []byte) bool {
	return func(chunk []byte) bool { return bytes.Contains(chunk, []byte(text)) }
}
