package faultnet

import (
	"bytes"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

const (
	chunkSize = 32 << 10
	maxQueued = 4 << 20 // bytes waiting in one direction before its reader pauses
)

// kind is the content of a parcel.
type kind int

const (
	data    kind = iota
	opening      // the client has connected; only Up
	fin          // the sender has sent all it will
	rst          // the sender's end is broken
)

// parcel is a unit that travels through a pipe.
type parcel struct {
	kind  kind
	bytes []byte
	came  time.Time
	luck  float64 // its share of the rule's Jitter, 0..1
}

// pipe is one direction of a link: a queue between the socket that is read and the one
// that is written. Its fields are guarded by the proxy's mu.
type pipe struct {
	link  *link
	dir   Direction
	queue []parcel
	size  int // bytes in queue

	losing    *loss     // strikes here
	holed     bool      // Drop has swallowed something: nothing more may be delivered
	finished  bool      // the fin has been delivered
	notBefore time.Time // of the next slice

	// Both hold one token: the sender need not wait, the receiver looks again at the state that it
	// stands for, and a second token would say nothing new.
	wake  chan struct{} // for the writer: the queue or the rule has changed
	space chan struct{} // for the reader: the queue has become shorter
}

func newPipe(l *link, dir Direction) *pipe {
	return &pipe{link: l, dir: dir, wake: make(chan struct{}, 1), space: make(chan struct{}, 1)}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// buffers are of links that have ended: random programs make thousands of short ones.
var buffers = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// read moves data from a socket into the queue.
func (p *pipe) read(from *net.TCPConn) {
	array := buffers.Get().(*[chunkSize]byte)
	defer buffers.Put(array)
	buf := array[:]
	for p.waitForSpace() {
		n, err := from.Read(buf)
		if n > 0 {
			p.arrive(bytes.Clone(buf[:n]))
		}
		if errors.Is(err, io.EOF) {
			p.push(parcel{kind: fin})
			return
		}
		if err != nil {
			p.push(parcel{kind: rst})
			return
		}
	}
}

// waitForSpace returns true when another chunk may be read, false when the link has ended.
func (p *pipe) waitForSpace() bool {
	mu := &p.link.proxy.mu
	for {
		mu.Lock()
		full, ended := p.size >= maxQueued, p.link.ended
		mu.Unlock()
		if ended || !full {
			return !ended
		}
		select {
		case <-p.space:
		case <-p.link.ctx.Done():
		}
	}
}

// arrive takes in a chunk: it may trip a loss, be lost to one, or be queued.
func (p *pipe) arrive(chunk []byte) {
	proxy, n := p.link.proxy, int64(len(chunk))
	proxy.mu.Lock()
	proxy.count(func(s *Stats) {
		s.flow(p.dir).Received += n
		s.flow(p.dir).Chunks++
	})
	if p.link.ended {
		p.countLost(n)
		proxy.mu.Unlock()
		return
	}
	if p.dir == Up {
		proxy.strike(p.link, chunk)
	}
	if p.losing == nil {
		p.pushLocked(parcel{kind: data, bytes: chunk})
		proxy.mu.Unlock()
		return
	}
	p.countLost(n)
	p.losing.left--
	last := p.losing.left == 0
	proxy.mu.Unlock()
	if last {
		p.link.end(byFIN)
	}
}

func (p *pipe) push(what parcel) {
	p.link.proxy.mu.Lock()
	defer p.link.proxy.mu.Unlock()
	p.pushLocked(what)
}

func (p *pipe) pushLocked(what parcel) {
	if p.link.ended {
		return // the sockets are being closed: there is no peer left to tell
	}
	// The kernel tells of a reset once, and it may be the other direction's write that learns of
	// it: this one's read then took it for the end of the stream.
	if n := len(p.queue); what.kind == rst && n > 0 && p.queue[n-1].kind == fin {
		p.queue = p.queue[:n-1]
	}
	what.came, what.luck = time.Now(), rand.Float64()
	p.queue = append(p.queue, what)
	p.size += len(what.bytes)
	poke(p.wake)
}

func (p *pipe) countLost(n int64) {
	p.link.proxy.count(func(s *Stats) { s.flow(p.dir).Lost += n })
}

// discardLocked drops the queue at the end of the link.
func (p *pipe) discardLocked() {
	p.countLost(int64(p.size))
	p.queue, p.size = nil, 0
}

// write delivers the queue until the link ends.
func (p *pipe) write() {
	for {
		what, wait, ok := p.next()
		if ok {
			p.deliver(what)
			continue
		}
		var due <-chan time.Time // nil waits for ever
		if wait > 0 {
			due = time.After(wait)
		}
		select {
		case <-due:
		case <-p.wake:
		case <-p.link.ctx.Done():
			return
		}
	}
}

// next takes a parcel that may be delivered now from the queue. If there is none, it returns the
// time after which to look again; 0 means not before a change.
func (p *pipe) next() (what parcel, wait time.Duration, ok bool) {
	proxy := p.link.proxy
	proxy.mu.Lock()
	defer proxy.mu.Unlock()
	rule := proxy.rules[p.dir]
	for len(p.queue) > 0 && (p.holed || rule.Mode == Drop) {
		p.holed = true
		p.countLost(int64(len(p.take(0).bytes)))
	}
	if len(p.queue) == 0 || rule.Mode == Hold {
		return parcel{}, 0, false
	}
	head := p.queue[0]
	due := head.came.Add(rule.Delay + time.Duration(head.luck*float64(rule.Jitter)))
	if due.Before(p.notBefore) {
		due = p.notBefore
	}
	if wait := time.Until(due); wait > 0 {
		return parcel{}, wait, false
	}
	if rule.Slice > 0 {
		p.notBefore = time.Now().Add(sliceGap)
	}
	most := rule.Slice
	if rule.Most > 0 && len(head.bytes) > 0 {
		left := rule.Most - proxy.passed[p.dir]
		if left <= 0 {
			return parcel{}, 0, false
		}
		if most == 0 || int64(most) > left {
			most = int(min(left, math.MaxInt32))
		}
	}
	what = p.take(most)
	proxy.passed[p.dir] += int64(len(what.bytes))
	return what, 0, true
}

// take removes the first parcel, or the first atMost bytes of it if atMost > 0.
func (p *pipe) take(atMost int) parcel {
	head := p.queue[0]
	if atMost > 0 && atMost < len(head.bytes) {
		p.queue[0].bytes = head.bytes[atMost:]
		head.bytes = head.bytes[:atMost]
	} else {
		p.queue = p.queue[1:]
	}
	p.size -= len(head.bytes)
	poke(p.space)
	return head
}

func (p *pipe) deliver(what parcel) {
	switch what.kind {
	case opening:
		p.link.connect()
	case data:
		p.deliverData(what.bytes)
	case fin:
		p.deliverFIN()
	case rst:
		p.link.end(byRST)
	}
}

func (p *pipe) deliverData(b []byte) {
	n, err := p.link.receiver(p.dir).Write(b)
	proxy := p.link.proxy
	proxy.mu.Lock()
	proxy.count(func(s *Stats) { s.flow(p.dir).Delivered += int64(n) })
	p.countLost(int64(len(b) - n))
	proxy.mu.Unlock()
	if err != nil {
		p.breakOff()
	}
}

// breakOff is called when this direction cannot be delivered; what follows will fail the
// same way. The sender is told by a reset, which travels through the other direction's
// queue: during a partition it must not learn that the receiver has gone. If the link has
// ended, this changes nothing.
func (p *pipe) breakOff() {
	p.link.proxy.mu.Lock()
	defer p.link.proxy.mu.Unlock()
	p.link.pipes[p.dir.other()].pushLocked(parcel{kind: rst})
}

// deliverFIN ends the stream towards the receiver, which may go on sending. When both
// streams have ended, so has the link.
func (p *pipe) deliverFIN() {
	_ = p.link.receiver(p.dir).CloseWrite() // fails only if the receiver is gone
	p.link.proxy.mu.Lock()
	p.finished = true
	both := p.link.pipes[p.dir.other()].finished
	p.link.proxy.mu.Unlock()
	if both {
		p.link.end(byFIN)
	}
}
