package faultnet

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// The proxy's ports lie just below those that the kernel hands to outgoing connections (32768 and
// up on Linux, 49152 elsewhere). In that range a port that refuses for a while could be given to an
// outgoing connection: the proxy could not listen on it again, and a client dialling it could even
// be connected to itself.
const (
	firstPort = 24001
	lastPort  = 32767
)

// Random programs need thousands of proxies at once, and there are fewer than 800 ports. On Linux
// all of 127.0.0.0/8 is this machine, and each address has separate ports; elsewhere only the first
// is, and the tries at the others fail.
const (
	hosts        = 16
	triesPerHost = 200
)

// endpoint is the listening socket and its port.
type endpoint struct {
	addr     string
	reserved io.Closer // reserves the port while the proxy does not listen

	mu       sync.Mutex // one opening or closing at a time
	listener *net.TCPListener
	loop     chan struct{} // closed when the accepting loop of listener has ended
}

func newEndpoint() (*endpoint, error) {
	var last error
	for i := range hosts * triesPerHost {
		addr := fmt.Sprintf("127.0.0.%d:%d", 1+i/triesPerHost, firstPort+rand.IntN(lastPort-firstPort+1))
		reserved, err := reserve(addr)
		if err != nil {
			last = err
			continue // another proxy has it
		}
		d := &endpoint{addr: addr, reserved: reserved}
		if last = d.listen(); last == nil {
			return d, nil
		}
		_ = reserved.Close() // another process has the TCP port
	}
	return nil, fmt.Errorf("no free port from %d to %d: %w", firstPort, lastPort, last)
}

// reserve takes a TCP port for one proxy among those of all processes, listening or not:
// each takes the UDP port of the same number first. Holding the TCP port itself without
// listening would need SO_REUSEPORT, which is not everywhere.
func reserve(addr string) (io.Closer, error) { return net.ListenPacket("udp", addr) }

func (d *endpoint) listen() error {
	l, err := net.Listen("tcp", d.addr)
	if err != nil {
		return err
	}
	d.listener = l.(*net.TCPListener)
	return nil
}

// close stops listening. When it returns, the loop has ended: no more connections are accepted. The
// kernel resets connections that it had completed but the loop had not accepted.
func (d *endpoint) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listener == nil {
		return
	}
	_ = d.listener.Close() // its only error is that it was closed already
	<-d.loop
	d.listener = nil
}

// release releases the port for good.
func (d *endpoint) release() { _ = d.reserved.Close() }

// Refuse stops listening: from now on connecting fails with "connection refused". Live connections
// continue; a server that crashed is Refuse and Reset.
func (p *Proxy) Refuse() { p.endpoint.close() }

// Rebuff accepts new connections and resets them at once, until Accept.
func (p *Proxy) Rebuff() error { return p.open(true) }

// Accept ends Refuse and Rebuff: the same port accepts connections again.
func (p *Proxy) Accept() error { return p.open(false) }

func (p *Proxy) open(rebuff bool) error {
	p.endpoint.mu.Lock()
	defer p.endpoint.mu.Unlock()
	p.mu.Lock()
	closed := p.closed
	p.rebuff = rebuff
	p.mu.Unlock()
	switch {
	case closed:
		// Close marks the proxy before it takes endpoint.mu to close the endpoint, so it also
		// closes an endpoint that was opened because this read came first.
		return errors.New("faultnet: the proxy is closed")
	case p.endpoint.listener != nil:
		return nil
	}
	if err := p.endpoint.listen(); err != nil {
		return fmt.Errorf("faultnet: listen again at %s: %w", p.Addr(), err)
	}
	p.startAccepting()
	return nil
}

// startAccepting runs the loop of the present listener. endpoint.mu is held, or no other goroutine
// knows the proxy yet.
func (p *Proxy) startAccepting() {
	listener, over := p.endpoint.listener, make(chan struct{})
	p.endpoint.loop = over
	p.wg.Go(func() {
		defer close(over)
		for {
			client, err := listener.AcceptTCP()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				// One connection's trouble, or a passing lack of descriptors: the next one waits,
				// as with such a server.
				time.Sleep(10 * time.Millisecond)
				continue
			}
			p.admit(client)
		}
	})
}
