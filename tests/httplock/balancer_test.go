package httplock_test

import (
	"bytes"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync/atomic"
)

// balancer is a proxy before several servers, which leads requests to some of them in turns. One that cannot be reached is passed over.
type balancer struct {
	to      atomic.Pointer[[]string]
	turn    atomic.Uint64
	adopted atomic.Int64
}

func (b *balancer) lead(addrs ...string) { b.to.Store(&addrs) }

func (b *balancer) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return // the client has gone
	}
	q.Body = io.NopCloser(bytes.NewReader(body))
	p := &httputil.ReverseProxy{
		Rewrite:       func(q *httputil.ProxyRequest) { q.Out.URL.Scheme = "http" },
		Transport:     inTurns{b, body},
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

type inTurns struct {
	*balancer
	body []byte
}

func (b inTurns) RoundTrip(q *http.Request) (r *http.Response, err error) {
	to := *b.to.Load()
	for first := b.turn.Add(1); len(to) > 0; to = to[:len(to)-1] {
		q.URL.Host = to[first%uint64(len(to))]
		q.Body = io.NopCloser(bytes.NewReader(b.body))
		r, err = http.DefaultTransport.RoundTrip(q)
		var op *net.OpError
		if !errors.As(err, &op) || op.Op != "dial" {
			return r, err
		}
	}
	return r, err
}
