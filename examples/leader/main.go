// Command leader is an HTTP server of which one copy leads. The leader answers; the others redirect
// to the address that it has published.
//
//	go run ./leader & go run ./leader & go run ./leader &
//	curl -L http://127.0.0.1:PORT/       # of any of them
//
// Stop the leader, and the next in the queue takes over. A leader that is paused, or cut off from
// the store, is deposed after the TTL and told before that: Held is false from then on. A request
// that it has begun by then can still be on its way. What such a request writes must carry the
// token of the term, and the resource refuse a smaller one (see the example inventory).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/examples/internal/store"
)

var listen = flag.String("listen", "127.0.0.1:0", "address to serve on; the others must reach it")

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	store.Exit(run(ctx))
}

type server struct {
	address string                    // our own
	term    atomic.Pointer[hasp.Term] // our last one; nil before the first
	leader  atomic.Pointer[string]    // the address of the leader, as the store has told it
}

func run(ctx context.Context) error {
	c, err := store.Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	s := &server{address: "http://" + listener.Addr().String()}
	web := &http.Server{Handler: s}
	defer web.Close()
	go web.Serve(listener) // ends with web.Close
	fmt.Println("serving", s.address)
	election := c.Election("leader")
	go s.follow(ctx, election)
	for {
		term, err := election.Campaign(ctx, []byte(s.address))
		if err != nil {
			return errors.Join(err, ctx.Err())
		}
		s.term.Store(term)
		fmt.Println("leading", s.address)
		select {
		case <-term.Lost(): // the handlers have stopped by themselves: Held is false
			fmt.Println("deposed", term.Err())
		case <-ctx.Done():
			return term.Resign(context.WithoutCancel(ctx))
		}
	}
}

// follow keeps in mind who leads. What it knows may be a moment old: the redirected client then
// finds a server that redirects it again.
func (s *server) follow(ctx context.Context, election *hasp.Election) {
	for leader, err := range election.Observe(ctx) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err) // Observe goes on when the store is back
			continue
		}
		address := string(leader.Value) // "": no leader
		s.leader.Store(&address)
		fmt.Println("following", address)
	}
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if term := s.term.Load(); term != nil && term.Held() {
		// Work here with term.Context(), and hand term.Token() to what is written.
		fmt.Fprintf(w, "%s leads, token %d\n", s.address, term.Token())
		return
	}
	leader := s.leader.Load()
	if leader == nil || *leader == "" || *leader == s.address {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "no leader", http.StatusServiceUnavailable)
		return
	}
	http.Redirect(w, r, *leader+r.URL.RequestURI(), http.StatusTemporaryRedirect)
}
