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
	address := "http://" + listener.Addr().String()
	fmt.Println("serving", address)
	var lead atomic.Pointer[hasp.Term]    // our last term; nil before the first
	var leader atomic.Pointer[hasp.Entry] // whom the store has told of last
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch term, other := lead.Load(), leader.Load(); {
		case term != nil && term.Held():
			// Work here with term.Bind(r.Context()), and hand term.Token() to what is written.
			fmt.Fprintf(w, "%s leads, token %d\n", address, term.Token())
		case other == nil || other.ID == "" || string(other.Value) == address:
			http.Error(w, "no leader, try again", http.StatusServiceUnavailable)
		default: // that may be a moment old: then the next server redirects again
			http.Redirect(w, r, string(other.Value)+r.URL.RequestURI(), http.StatusTemporaryRedirect)
		}
	}))
	election := c.Election("leader")
	go func() {
		for now, err := range election.Observe(ctx) {
			if err == nil { // else it goes on when the store is back
				leader.Store(&now)
				fmt.Println("following", string(now.Value))
			}
		}
	}()
	err = election.Run(ctx, []byte(address), func(ctx context.Context, term *hasp.Term) error {
		lead.Store(term)
		<-ctx.Done() // deposed, or told to stop; the handlers stop by themselves: Held is false
		return nil
	})
	if ctx.Err() != nil {
		return nil // as told
	}
	return err
}
