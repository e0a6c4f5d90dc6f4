package redislock

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/redisconn"
	"github.com/hasplock/hasp/internal/setnx"
)

// foreignError is the error for a key that somebody else uses, or we by another strategy.
type foreignError struct {
	name, key    string
	what, shared string // as setnx.Describe says it; "" if nobody has looked
}

func (e *foreignError) Error() string {
	s := fmt.Sprintf("%v: the key of %q has something that this strategy of hasp did not write; choose another prefix or remove it", driver.ErrMismatch, e.name)
	if e.what == "" {
		return s
	}
	s = fmt.Sprintf("%v: the key %q of %q has %s, which this strategy of hasp did not write", driver.ErrMismatch, e.key, e.name, e.what)
	if e.shared == "" {
		return s + "; choose another name or prefix, or remove it"
	}
	return s + "; to share it take " + e.shared + ", else choose another name or prefix"
}

// Unwrap returns driver.ErrMismatch.
func (e *foreignError) Unwrap() error { return driver.ErrMismatch }

func foreign(name string) error { return &foreignError{name: name} }

func wrongType(name string, err error) error {
	if redisconn.Answered(err) == "WRONGTYPE" {
		return foreign(name)
	}
	return redisconn.Refusal(err)
}

// identify names the other client in an error about its key, which takes one request more.
// What it finds is for people: the key may have changed since, or be out of reach, and then
// the error stays as it is.
func identify(ctx context.Context, conn redisconn.Conn, key string, err error) error {
	var f *foreignError
	if !errors.As(err, &f) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, identifyBound)
	defer cancel()
	what, shared := setnx.Describe(conn.Eval(ctx, setnx.Format, redisconn.Call{Keys: []string{key}}, 0).Value)
	return &foreignError{name: f.name, key: key, what: what, shared: shared}
}

// identifyBound is short: the request that failed was answered a moment ago.
const identifyBound = time.Second

// redissonHolder is how Redisson's RLock calls a holder, UUID:THREAD. Another hash, such as
// that of its read-write lock or of our own queue, holds no RLock: it would be waited for in
// vain.
var redissonHolder = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d+$`)
