package faultnet

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"net"
	"slices"
	"testing"
	"time"
)

func TestPassCountsBothWays(t *testing.T) {
	l := newLab(t)
	l.dial(t).ask("hello")
	l.dial(t).ask("again")
	want := Stats{Accepted: 2, Live: 2, Up: Flow{Chunks: 2, Received: 12, Delivered: 12}, Down: Flow{Chunks: 2, Received: 18, Delivered: 18}}
	l.until(t, "all is counted", func(s Stats) bool { return s == want })
}

func TestHalfCloseStillAnswers(t *testing.T) {
	l := newLab(t)
	c := l.dial(t)
	c.send("last words")
	c.CloseWrite()
	c.mustReceive("re:last words")
	c.mustEndWith(errFIN)
	l.until(t, "the connection has ended", func(s Stats) bool { return s.Live == 0 })
}

func TestDelayIsKeptAndOrderToo(t *testing.T) {
	for _, dir := range []Direction{Up, Down} {
		t.Run(dir.String(), func(t *testing.T) {
			l := newLab(t)
			c := l.dial(t)
			c.ask("connect first")
			const delay, n = 50 * time.Millisecond, 40
			l.Set(dir, Rule{Delay: delay, Jitter: delay})
			start := time.Now()
			go func() {
				for i := range n {
					fmt.Fprintln(c, i)
					time.Sleep(time.Millisecond) // separate chunks, each with its own jitter
				}
			}()
			for i := range n {
				c.mustReceive(fmt.Sprintf("re:%d", i))
				if took := time.Since(start); took < delay {
					t.Fatalf("answer %d after %v, before the delay of %v", i, took, delay)
				}
			}
		})
	}
}

func TestShorterDelayAppliesToWhatWaits(t *testing.T) {
	l := newLab(t)
	l.Set(Down, Rule{Delay: time.Hour})
	c := l.dial(t)
	c.send("x")
	l.until(t, "the answer waits", downHas(len("re:x\n")))
	l.Set(Down, Rule{})
	c.mustReceive("re:x")
}

func TestHoldUpKeepsTheRequest(t *testing.T) {
	l := newLab(t)
	c := l.dial(t)
	c.ask("before")
	l.Set(Up, Rule{Mode: Hold})
	c.send("held")
	l.until(t, "the request waits", upHas(len("held\n")))
	if got := l.server.asked(); !slices.Equal(got, []string{"before"}) {
		t.Fatalf("the server got %q during the hold", got)
	}
	l.Set(Up, Rule{})
	c.mustReceive("re:held")
}

func TestHoldDownKeepsTheAnswer(t *testing.T) {
	l := newLab(t)
	c := l.dial(t)
	l.Set(Down, Rule{Mode: Hold})
	c.send("x")
	l.until(t, "the answer waits", downHas(len("re:x\n")))
	c.mustStaySilent()
	if got := l.server.asked(); !slices.Equal(got, []string{"x"}) {
		t.Fatalf("the server got %q; requests must pass", got)
	}
	l.Heal()
	c.mustReceive("re:x")
}

// During a partition the server must learn nothing of a client: not its connection, not
// its bytes, not that it has gone.
func TestPartitionHoldsOpeningBytesAndFIN(t *testing.T) {
	l := newLab(t)
	old := l.dial(t)
	old.ask("before")
	l.Partition()
	old.send("from the old one")
	old.Close()
	fresh := l.dial(t)
	fresh.send("from the new one")
	l.until(t, "both wait", upHas(len("from the old one\nfrom the new one\n")))
	fresh.mustStaySilent()
	if n, got := l.server.connections(), l.server.asked(); n != 1 || len(got) != 1 {
		t.Fatalf("during the partition the server has %d connections and was asked %q", n, got)
	}
	l.Heal()
	fresh.mustReceive("re:from the new one")
	l.server.waitFor(t, "the old client's line and its end", func() bool {
		return slices.Contains(l.server.lines, "from the old one") && slices.Equal(l.server.ends, []error{errFIN})
	})
}

func TestHoldKeepsTheServersReset(t *testing.T) {
	l := newLab(t)
	c := l.dial(t)
	c.ask("x")
	l.Set(Down, Rule{Mode: Hold})
	l.server.mu.Lock()
	reset(l.server.conns[0])
	l.server.mu.Unlock()
	c.send("into the void") // its failure to arrive must not tell the client either
	c.mustStaySilent()
	l.Heal()
	c.mustEndWith(errRST)
}

// The other direction's write may be told of the reset, and the read of an end of the stream.
func TestResetBehindAnEnd(t *testing.T) {
	l := newLab(t)
	c := l.dial(t)
	c.ask("x")
	l.Set(Down, Rule{Mode: Hold})
	l.Proxy.mu.Lock()
	for link := range l.Proxy.links {
		link.pipes[Down].pushLocked(parcel{kind: fin})
		link.pipes[Down].pushLocked(parcel{kind: rst})
	}
	l.Proxy.mu.Unlock()
	l.Heal()
	c.mustEndWith(errRST)
}

func TestDropLeavesAHalfOpenConnection(t *testing.T) {
	l := newLab(t)
	c := l.dial(t)
	c.ask("before")
	l.Set(Down, Rule{Mode: Drop})
	c.send("lost answer")
	l.until(t, "the answer is lost", func(s Stats) bool { return s.Down.Lost == int64(len("re:lost answer\n")) })
	l.Set(Down, Rule{})
	c.send("passed, but the stream has a hole")
	l.server.waitFor(t, "the later request", func() bool { return len(l.server.lines) == 3 })
	c.mustStaySilent()

	l.dial(t).ask("a new connection is whole")

	l.Heal()
	c.mustEndWith(errFIN) // Heal cuts what cannot work again
}

func TestDropSwallowsTheClientsFIN(t *testing.T) {
	l := newLab(t)
	c := l.dial(t)
	c.ask("x")
	l.Set(Up, Rule{Mode: Drop})
	c.Close()
	time.Sleep(silence)
	l.server.mu.Lock()
	ends := len(l.server.ends)
	l.server.mu.Unlock()
	if live := l.Stats().Live; ends != 0 || live != 1 {
		t.Fatalf("the server saw %d ends, %d connections live; want a half-open one", ends, live)
	}
	l.Reset()
	l.server.waitFor(t, "the reset", func() bool { return len(l.server.ends) == 1 })
}

// With slices of one byte a reader sees most bytes arrive one by one (not all: it may
// sleep too long); without them it never does, or that would prove nothing.
func TestSliceMakesCrumbs(t *testing.T) {
	l := newLab(t)
	c := l.dial(t)
	readsFor := func(line string) (reads int) {
		c.send(line)
		c.SetReadDeadline(time.Now().Add(limit))
		buf := make([]byte, 100)
		for got := 0; got < len("re:\n")+len(line); reads++ {
			n, err := c.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			got += n
		}
		return reads
	}
	for range 100 {
		if n := readsFor("0123456789"); n != 1 {
			t.Fatalf("unsliced, the answer came in %d pieces", n)
		}
	}
	l.Set(Down, Rule{Slice: 1})
	reads, most := 0, 10*len("re:0123456789\n")
	for round := 0; round < 5 && reads < most/2; round++ { // on a busy machine the reader may sleep through one
		reads = 0
		for range 10 {
			reads += readsFor("0123456789")
		}
	}
	if reads < most/2 || reads > most {
		t.Fatalf("sliced, %d bytes came in %d pieces", most, reads)
	}
	l.Set(Up, Rule{Slice: 3})
	c.ask("both ways at once")
}

// Most is exact, for all connections together, and begins anew with each Set.
func TestMostHoldsTheRest(t *testing.T) {
	l := newLab(t)
	clients := []*client{l.dial(t), l.dial(t)}
	for _, c := range clients {
		c.ask("hello") // the connections stand
	}
	l.Set(Up, Rule{Most: 7, Slice: 3})
	for _, c := range clients {
		c.send("12345")
	}
	const before = 2 * int64(len("hello\n"))
	for _, want := range []int64{before + 7, before + 7 + 4} {
		l.until(t, "the first bytes are through", func(s Stats) bool { return s.Up.Received == before+12 && s.Up.Delivered >= want })
		time.Sleep(silence) // nothing more comes
		if got := l.Stats().Up; got.Delivered != want {
			t.Fatalf("%+v, want %d delivered", got, want)
		}
		l.Set(Up, Rule{Most: 4})
	}
	l.Set(Up, Rule{})
	for _, c := range clients {
		c.mustReceive("re:12345")
	}
}

// What is held is bounded; beyond that the sender is slowed and nothing is lost.
func TestHeldBytesPushBack(t *testing.T) {
	sink, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sums := make(chan hash.Hash, 1)
	go func() {
		defer sink.Close()
		c, err := sink.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		h := sha256.New()
		io.Copy(h, c)
		sums <- h
	}()
	p, err := New(t.Context(), sink.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	l := &lab{p, nil}
	p.Partition()
	c := l.dial(t)
	want := sha256.New()
	// A busy machine may block a write, too, before the proxy has taken all that it holds.
	for end := time.Now().Add(limit); p.Stats().Up.Waiting() < maxQueued && time.Now().Before(end); {
		c.fill(want)
	}
	if held := p.Stats().Up.Waiting(); held < maxQueued || held > maxQueued+chunkSize {
		t.Fatalf("the proxy holds %d bytes", held)
	}
	p.Heal()
	c.CloseWrite()
	select {
	case got := <-sums:
		if !slices.Equal(got.Sum(nil), want.Sum(nil)) {
			t.Fatal("the bytes held did not arrive as they were sent")
		}
	case <-time.After(limit):
		t.Fatalf("not everything arrived: %+v", p.Stats())
	}
}

// Closing a socket that has unread bytes makes the kernel send a RST; a cut must not.
func TestCutOfAFullConnectionIsAFIN(t *testing.T) {
	l := newLab(t)
	c := l.dial(t)
	c.ask("x")
	l.Partition()
	c.fill(io.Discard)
	l.Cut()
	c.mustEndWith(errFIN)
}

// fill writes until nothing more goes in, and copies what went in to sent.
func (c *client) fill(sent io.Writer) {
	c.t.Helper()
	block := make([]byte, 1<<16)
	for i, total := 0, 0; ; i++ {
		for j := range block {
			block[j] = byte(i + j*i)
		}
		c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		n, err := c.Write(block)
		sent.Write(block[:n])
		if isTimeout(err) {
			return
		}
		if total += n; err != nil || total > 64<<20 {
			c.t.Fatalf("after %d bytes: %v; want a writer that blocks", total, err)
		}
	}
}
