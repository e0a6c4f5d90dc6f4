package httpguard_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/guard"
	"github.com/hasplock/hasp/guard/httpguard"
	"github.com/hasplock/hasp/memlock"
)

// A service with a guarded handler, and two holders of the lock, one after the other: the
// first one's late request is refused.
func Example() {
	state := ""
	orders := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { state = r.FormValue("state") })
	lockOf := func(r *http.Request) string { return strings.TrimPrefix(r.URL.Path, "/") }
	server := httptest.NewServer(httpguard.Handler(&guard.Fences{}, lockOf, orders))
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
		defer lease.Release(ctx)
		client := &http.Client{Transport: httpguard.Transport(nil, lease.Name(), lease.Token())}
		if err := httpguard.Advance(ctx, client, server.URL+"/orders/42"); err != nil {
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
		fmt.Println(resp.Status, errors.Is(httpguard.Err(resp), guard.ErrStale))
	}
	fmt.Println(state)
	// Output:
	// 200 OK false
	// 412 Precondition Failed true
	// paid
}
