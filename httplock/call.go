package httplock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

const (
	patience      = 15 * time.Second // for an answer that waits for nothing
	largestAnswer = 64 << 20         // a queue of ten thousand has 5 MB
)

// request is one call of the API.
type request struct {
	method, path string
	query        url.Values
	session      string
	of           *ticket       // session.call fills in path and session, where the ticket is by then
	more         string        // of the path, after the ticket's
	body         any           // nil: none
	bodyLocked   func() any    // if not nil, session.call has it make the body: a move may change that
	wait         time.Duration // how long the server may wait, beside answering
}

// late bounds how often a call is repeated that requests given up before have overtaken: each such
// request does so once.
const late = 10

// call makes a request, and decodes the answer unless into is nil. An error that is no answer of
// the server says nothing about the outcome. net/http repeats a GET of which the connection has
// just been closed, and nothing else.
//
// A request whose context ended may reach the server after the next one for the same lock, which
// the server then ends, taking it for the one that was given up. It is repeated: every request may
// be.
func (b *backend) call(ctx context.Context, r request, into any) error {
	for range late {
		err := b.callOnce(ctx, r, into)
		if p := new(httpapi.Problem); !errors.As(err, &p) || !p.Of(httpapi.Overtaken) {
			return err
		}
	}
	return b.callOnce(ctx, r, into)
}

func (b *backend) callOnce(ctx context.Context, r request, into any) error {
	ctx, cancel := context.WithTimeout(ctx, patience+r.wait)
	defer cancel()
	resp, err := b.send(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, largestAnswer))
	if err != nil {
		return b.failed(ctx, err)
	}
	switch {
	case into == nil && resp.StatusCode == http.StatusNoContent:
		return nil
	case into == nil:
		return b.strange("answers " + resp.Status + " where nothing is to be said")
	}
	if err := decode(body, into); err != nil {
		return b.strange(err.Error())
	}
	return nil
}

// strange is the error of an answer that is not the server's: a portal or a firewall in between
// answers 200 to everything. It says nothing about the outcome.
func (b *backend) strange(what string) error {
	return fmt.Errorf("%s is not hasp serve, or something is in between: it %s", b.host, what)
}

// decode reads an answer, which has all the fields that the server never leaves out: {} is no queue
// without entries.
func decode(body []byte, into any) error {
	var has map[string]json.RawMessage
	if err := json.Unmarshal(body, &has); err != nil {
		return fmt.Errorf("answers what is no JSON object: %w", err)
	}
	for f := range reflect.TypeOf(into).Elem().Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if v, there := has[name]; !strings.HasPrefix(options, "omit") && (!there || string(v) == "null") {
			return fmt.Errorf("answers without %q", name)
		}
	}
	return json.Unmarshal(body, into)
}

// send returns an answer that is no error.
func (b *backend) send(ctx context.Context, r request) (*http.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if b.closed.Err() != nil {
		return nil, driver.ErrClosed
	}
	var body io.Reader
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	target := b.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	q, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, err
	}
	if r.body != nil {
		q.Header.Set("Content-Type", "application/json")
	}
	if b.token != "" {
		q.Header.Set("Authorization", "Bearer "+b.token)
	}
	if r.session != "" {
		q.Header.Set(httpapi.SessionHeader, r.session)
	}
	resp, err := b.client.Do(q)
	if err != nil {
		return nil, b.failed(ctx, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, b.problem(resp)
}

// problem is the error that the server has answered.
func (b *backend) problem(resp *http.Response) error {
	var p httpapi.Problem
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if kind != "application/problem+json" || json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&p) != nil {
		return fmt.Errorf("%s answers %s, and is not hasp serve, or something is in between", b.host, resp.Status)
	}
	return p.AsDriver()
}

// failed is the error of a request without an answer: without its URL, which names the lock.
func (b *backend) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return fmt.Errorf("hasp serve at %s: %w", b.host, err)
}
