// Package httpfence carries fencing tokens over HTTP: the client's transport puts the lock's
// name and token into two headers, the server's handler refuses a request whose token is
// stale with 412 Precondition Failed.
//
//	Hasp-Lock: orders%2F42        the lock's name, percent-encoded
//	Hasp-Token: 88                the token; in every answer the greatest one seen
//
// On the server:
//
//	var fences fencing.Fences
//	http.Handle("/orders/", httpfence.Handler(&fences, lockOf, orders))
//
// where lockOf names the lock that protects what a request is about. At the client:
//
//	client, err := httpfence.With(ctx, nil, lease, "https://example.com/orders/42")
//	...read, think...
//	resp, err := client.Post(...)
//	err = httpfence.Err(resp)
//
// # Caveats
//
// The fences are in the memory of one server process. Behind a balancer, or if the data
// outlives the process, the data's own store must compare: use [FromContext] in a handler and
// sqlfence or another fence there.
//
// Headers are no authentication: a client that may send requests may also send a huge token, and
// all others are then refused. Put the handler behind your check of write permissions.
package httpfence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"time"

	"github.com/hasplock/hasp/fencing"
)

// The headers of requests and answers.
const (
	LockHeader  = "Hasp-Lock"
	TokenHeader = "Hasp-Token"
)

// Handler passes requests to next that carry a token of the right lock, if it has seen no greater
// one. lock returns the name of the lock that protects what a request is about, or "" for requests
// that need none; it must not return names that a client chooses, since a fence is kept for each.
//
//   - A token smaller than the greatest one seen: 412 Precondition Failed.
//   - No token, with a method other than GET, HEAD, OPTIONS or TRACE: 428 Precondition
//     Required. Those may come without, since they write nothing; if they carry a token it
//     is compared.
//   - A token of another lock, or headers that make no sense: 400 Bad Request.
//
// The body is read before the fence is asked, so that a holder which is stopped in the middle of an
// upload is in the way of no other: at most [MaxBody] bytes, within [BodyTime], or the answer is
// 413 or 408. The answer has as long for its way to the client. What is larger is better uploaded
// first, and named in a small request that is compared.
//
// While next handles a request, no greater token is accepted: the request that brings one waits, so
// that it reads everything that the earlier ones have written. next must finish its writes before
// it returns, and should not take long. A handler that gives up waiting for another, as
// [http.TimeoutHandler] does, returns while that one still writes, and must be outside:
//
//	http.TimeoutHandler(httpfence.Handler(&fences, lockOf, orders), 5*time.Second, "")
//
// Handler panics if next is an http.TimeoutHandler. It cannot see one deeper inside, nor a handler
// whose goroutine writes after it returned.
func Handler(fences *fencing.Fences, lock func(*http.Request) string, next http.Handler) http.Handler {
	if reflect.TypeOf(next) == timeoutHandler {
		panic("httpfence: the handler inside is an http.TimeoutHandler, which returns while its own still writes: put it outside")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := lock(r)
		if name == "" {
			next.ServeHTTP(w, r)
			return
		}
		given := r.Header.Values(TokenHeader)
		if len(given) == 0 && len(r.Header.Values(LockHeader)) == 0 {
			if safe(r.Method) {
				next.ServeHTTP(w, r)
				return
			}
			http.Error(w, "this needs the lock "+strconv.Quote(name)+": send its name and fencing token in "+LockHeader+" and "+TokenHeader, http.StatusPreconditionRequired)
			return
		}
		lease, err := parse(r.Header, name)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if !readBody(w, r) {
			return
		}
		fence := fences.Of(name)
		writer, err := fence.With(lease)
		if err == nil {
			err = writer.Do(func() error {
				w.Header().Set(TokenHeader, strconv.FormatUint(lease.Token(), 10))
				_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(BodyTime)) // where it cannot be set, none was
				next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), leaseKey{}, lease)))
				return nil
			})
		}
		if err != nil { // stale; next has not run
			w.Header().Set(LockHeader, url.PathEscape(name))
			w.Header().Set(TokenHeader, strconv.FormatUint(fence.Seen(), 10))
			http.Error(w, err.Error(), http.StatusPreconditionFailed)
		}
	})
}

// The bounds of the body of a request that is compared.
const (
	MaxBody  = 8 << 20          // bytes
	BodyTime = 30 * time.Second // for its way here, and for the answer's way back
)

// readBody reads the body into memory, or answers why it cannot.
func readBody(w http.ResponseWriter, r *http.Request) bool {
	if r.Body == nil {
		return true
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(BodyTime)) // where it cannot be set, the server has its own
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	if large := new(http.MaxBytesError); errors.As(err, &large) {
		http.Error(w, "the body has more than "+strconv.Itoa(MaxBody)+" bytes", http.StatusRequestEntityTooLarge)
		return false
	}
	if err != nil {
		http.Error(w, "the body has not come", http.StatusRequestTimeout)
		return false
	}
	_ = rc.SetReadDeadline(time.Time{}) // the same
	r.Body = io.NopCloser(bytes.NewReader(body))
	return true
}

// timeoutHandler is the type that http.TimeoutHandler returns, which is not exported.
var timeoutHandler = reflect.TypeOf(http.TimeoutHandler(http.NotFoundHandler(), 1, ""))

// safe methods write nothing (RFC 9110, 9.2.1).
func safe(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// parse returns the lease that a request is sent under, which must be of the lock.
func parse(h http.Header, name string) (fencing.Grant, error) {
	names, tokens := h.Values(LockHeader), h.Values(TokenHeader)
	if len(names) != 1 || len(tokens) != 1 {
		return nil, fmt.Errorf("%w: %s and %s must be there once each", fencing.ErrInvalid, LockHeader, TokenHeader)
	}
	given, err := url.PathUnescape(names[0])
	if err != nil {
		return nil, fmt.Errorf("%w: %s is not percent-encoded", fencing.ErrInvalid, LockHeader)
	}
	if given != name {
		return nil, fmt.Errorf("%w: this is protected by the lock %q, and the token is of %q", fencing.ErrInvalid, name, given)
	}
	token, err := strconv.ParseUint(tokens[0], 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%w: %s is not a whole number", fencing.ErrInvalid, TokenHeader)
	}
	return fencing.GrantOf(name, token), fencing.Check(name, token)
}

type leaseKey struct{}

// FromContext returns the lease of a request that Handler has accepted, for a handler that passes
// it on to the fence of its store: by sqlfence's With, say.
func FromContext(ctx context.Context) (fencing.Grant, bool) {
	lease, ok := ctx.Value(leaseKey{}).(fencing.Grant)
	return lease, ok
}
