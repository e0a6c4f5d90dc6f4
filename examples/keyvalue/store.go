// Package keyvalue makes locks of a key-value server over HTTP (Server), whose only power is to
// replace a value if it has not changed. Package caslock does the rest: this file is all that a
// store of that kind needs. Its URL is keyvalue://host:port.
package keyvalue

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hasplock/hasp/caslock"
	"github.com/hasplock/hasp/driver"
)

func init() { driver.Register("keyvalue", openURL) }

func openURL(_ context.Context, u *url.URL) (driver.Backend, error) {
	p := driver.NewParams(u.Query())
	poll := p.Duration("poll", time.Second)
	if err := p.Err(); err != nil {
		return nil, err
	}
	// Separate connections: another part of the program must not end them, nor wait for ours.
	return caslock.New(&store{u.Host, &http.Transport{MaxIdleConnsPerHost: 32}}, &caslock.Options{Poll: poll}), nil
}

// store is a caslock.Store.
type store struct {
	host string
	http *http.Transport
}

func (s *store) String() string { return "keyvalue " + s.host }

func (s *store) Close() error {
	s.http.CloseIdleConnections()
	return nil
}

// Load reads value and version in one answer.
func (s *store) Load(ctx context.Context, name string) (caslock.Record, caslock.Version, error) {
	status, version, text, err := s.ask(ctx, http.MethodGet, "key", name, nil, nil)
	switch {
	case err != nil:
		return caslock.Record{}, caslock.Absent, err
	case status == http.StatusNotFound:
		return caslock.Record{}, caslock.Absent, nil
	}
	r, err := caslock.Decode(text) // bytes that are no record are an error: they stay as they are
	return r, version, err
}

// Swap writes on a condition. What is neither success nor conflict is an error that says nothing
// about what was done: caslock reads the record again.
func (s *store) Swap(ctx context.Context, r caslock.Record, old caslock.Version) (caslock.Version, error) {
	condition := http.Header{"If-Match": {string(old)}}
	if old == caslock.Absent {
		condition = http.Header{"If-None-Match": {"*"}}
	}
	status, version, _, err := s.ask(ctx, http.MethodPut, "key", r.Name, condition, r.Encode())
	if err == nil && status == http.StatusPreconditionFailed {
		err = caslock.ErrConflict
	}
	return version, err
}

// List has whole records in one request.
func (s *store) List(ctx context.Context, prefix string, yield func(caslock.Record, caslock.Version) bool) error {
	_, _, text, err := s.ask(ctx, http.MethodGet, "prefix", prefix, nil, nil)
	if err != nil {
		return err
	}
	var all []Item
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	for _, item := range all {
		r, err := caslock.Decode(item.Value)
		if err == nil && strings.HasPrefix(r.Name, prefix) && !yield(r, caslock.Version(item.Version)) {
			break
		}
	}
	return nil
}

// ask sends one request, once: a transport repeats a PUT only if nothing of it was sent.
func (s *store) ask(ctx context.Context, method, key, value string, h http.Header, body []byte) (status int, v caslock.Version, text []byte, err error) {
	u := url.URL{Scheme: "http", Host: s.host, Path: "/values", RawQuery: url.Values{key: {value}}.Encode()}
	r, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return 0, caslock.Absent, nil, fmt.Errorf("%w: %s", driver.ErrInvalid, s)
	}
	for name, value := range h {
		r.Header[name] = value
	}
	answer, err := s.http.RoundTrip(r)
	if err != nil {
		return 0, caslock.Absent, nil, fmt.Errorf("%s: %w", s, err)
	}
	defer answer.Body.Close()
	if text, err = io.ReadAll(answer.Body); err != nil {
		return 0, caslock.Absent, nil, fmt.Errorf("%s: %w", s, err)
	}
	switch answer.StatusCode {
	case http.StatusOK, http.StatusNotFound, http.StatusPreconditionFailed:
		return answer.StatusCode, caslock.Version(answer.Header.Get("ETag")), text, nil
	}
	return 0, caslock.Absent, nil, fmt.Errorf("%s: %s", s, answer.Status)
}
