package httplock_test

import (
	"bytes"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"sync/atomic"
)

// balancer is a proxy before several servers. It has affinity: all requests of its client come to
// one server, until that cannot be reached.
type balancer struct {
	to      atomic.Pointer[[]string] // the first is the client's
	adopted atomic.Int64
}

// lead sends all requests to the first of some addresses, and to the next when that is down.
func (b *balancer) lead(addrs ...string) { b.to.Store(&addrs) }

func (b *balancer) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return // the client has gone
	}
	q.Body = io.NopCloser(bytes.NewReader(body))
	p := &httputil.ReverseProxy{
		Rewrite:       func(q *httputil.ProxyRequest) { q.Out.URL.Scheme = "http" },
		Transport:     affine{b, body},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // of servers that are killed
		ModifyResponse: func(r *http.Response) error {
			if strings.HasSuffix(q.URL.Path, "/adopt") && r.StatusCode == http.StatusOK {
				b.adopted.Add(1)
			}
			return nil
		},
	}
	p.ServeHTTP(w, q)
}

type affine struct {
	*balancer
	body []byte
}

func (b affine) RoundTrip(q *http.Request) (r *http.Response, err error) {
	to := b.to.Load()
	for range *to {
		q.URL.Host = (*to)[0]
		q.Body = io.NopCloser(bytes.NewReader(b.body))
		r, err = http.DefaultTransport.RoundTrip(q)
		var op *net.OpError
		if !errors.As(err, &op) || op.Op != "dial" {
			return r, err
		}
		next := append(slices.Clone((*to)[1:]), (*to)[0])
		if !b.to.CompareAndSwap(to, &next) { // another request has found it down
			next = *b.to.Load()
		}
		to = &next
	}
	return r, err
}
