package httpfence_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/httpfence"
	"github.com/hasplock/hasp/memlock"
)

// A service with a fenced handler, and two holders of the lock, one after the other: the
// first one's late request is refused.
func Example() {
	state := ""
	orders := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { state = r.FormValue("state") })
	lockOf := func(r *http.Request) string { return strings.TrimPrefix(r.URL.Path, "/") }
	server := httptest.NewServer(httpfence.Handler(&fencing.Fences{}, lockOf, orders))
	defer server.Close()

	ctx := context.Background()
	locks, err := hasp.New(memlock.New().Backend())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close()
	take := func() *http.Client {
		lease, err := locks.Mutex("orders/42").Lock(ctx)
		if err != nil {
			fmt.Println(err)
			return nil
		}
		defer lease.Unlock()
		client, err := httpfence.With(ctx, nil, lease, server.URL+"/orders/42")
		if err != nil {
			fmt.Println(err)
		}
		return client
	}
	first, second := take(), take()

	for _, c := range []*http.Client{second, first} {
		resp, err := c.PostForm(server.URL+"/orders/42", map[string][]string{"state": {"paid"}})
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(resp.Status, errors.Is(httpfence.Err(resp), fencing.ErrStale))
	}
	fmt.Println(state)
	// Output:
	// 200 OK false
	// 412 Precondition Failed true
	// paid
}
