package s3lock_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/s3lock"
)

// A name that is too long for a key is in its object, and a list reads each of them, also for
// another prefix. That takes longer than a request is waited for; each answer is one.
func TestLongNamesOfOtherPrefixes(t *testing.T) {
	t.Parallel()
	const most = s3lock.MinTTL / 2 // for one request
	var late time.Duration
	s := serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/~") {
				time.Sleep(late)
			}
			h.ServeHTTP(w, r)
		})
	})
	b := open(t, s.url("x"))
	defer b.Close()
	session, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: s3lock.MinTTL, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	const names = 15
	take := func(name string) {
		request := driver.Request{Name: name, ID: "id-" + name[:2], Units: driver.Whole, Capacity: driver.Whole}
		if v, err := session.Ticket(request).Enqueue(t.Context()); err != nil || !v.Held {
			t.Fatalf("%+v, %v", v, err)
		}
	}
	for i := range names {
		take(strconv.Itoa(10+i) + strings.Repeat("long", 128)) // 514 bytes
	}
	take("a name")
	late = most / 10
	var listed []string
	err = b.(driver.Namer).Names(t.Context(), "a", func(name string) bool {
		listed = append(listed, name)
		return true
	})
	if err != nil || len(listed) != 1 || listed[0] != "a name" {
		t.Errorf("%q, %v", listed, err)
	}
}
