package redislock

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// foreignError is the error for a key that another program or another strategy of hasp uses.
type foreignError struct {
	name, key    string
	what, shared string // the results of setnx.Describe; "" before it was asked
	own          bool   // it is this strategy's own format, and not readable
}

func (e *foreignError) Error() string {
	s := fmt.Sprintf("%v: the key of %q has something that this strategy of hasp did not write; choose another prefix or remove it", driver.ErrMismatch, e.name)
	if e.what == "" {
		return s
	}
	if e.own {
		return fmt.Sprintf("%v: the key %q of %q has %s, whose contents are damaged; remove it when no client holds the lock", driver.ErrMismatch, e.key, e.name, e.what)
	}
	s = fmt.Sprintf("%v: the key %q of %q has %s, which this strategy of hasp did not write", driver.ErrMismatch, e.key, e.name, e.what)
	if e.shared == "" {
		return s + "; choose another name or prefix, or remove it"
	}
	return s + "; to share it take " + e.shared + ", else choose another name or prefix"
}

// Unwrap returns driver.ErrMismatch.
func (e *foreignError) Unwrap() error { return driver.ErrMismatch }

func errForeign(name string) error { return &foreignError{name: name} }

func wrongType(name string, err error) error {
	if redisconn.Answered(err) == "WRONGTYPE" {
		return errForeign(name)
	}
	return redisconn.Refusal(err)
}

// leaveDone reports that a request to leave need not be repeated: it was executed, or is refused
// for good.
func leaveDone(err error) bool {
	return err == nil || redisconn.Answered(err) != "" && !redisconn.RefusedNow(err)
}

// notDone returns those of the requests to leave that have to be repeated, and the last error.
func notDone[E any](left []E, replies []redisconn.Reply) (failed []E, err error) {
	for i, r := range replies {
		if !leaveDone(r.Err) {
			failed, err = append(failed, left[i]), r.Err
		}
	}
	return failed, err
}

// describeForeign names the foreign client in an error about its key, at the price of one more
// request. The text is for people: if the key has changed since, or is out of reach, the error
// stays as it is.
func describeForeign(ctx context.Context, conn redisconn.Conn, own Strategy, key string, err error) error {
	var f *foreignError
	if !errors.As(err, &f) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	answer := conn.Eval(ctx, setnx.Format, redisconn.Call{Keys: []string{key}}, 0).Value
	if other := otherFormat(own, key, answer); other != nil {
		return other
	}
	what, shared := setnx.Describe(answer)
	return &foreignError{name: f.name, key: key, what: what, shared: shared, own: strings.HasPrefix(shared, "strategy="+string(own)+" ")}
}

// queueFormat is the version of a name's hash; the field hasp2 has it in its name. The scripts refuse
// a hash without this field, and a new format has another: so no client touches a queue of a format
// that it does not know. What stays for good is the key, and that the field is "hasp" and a number.
const queueFormat = 2

// otherFormat is an error if the answer of setnx.Format says that a key has a queue of another
// version of hasp.
func otherFormat(own Strategy, key string, answer any) error {
	found := setnx.QueueFormat(answer)
	if own != StrategyQueue || found == 0 || found == queueFormat {
		return nil
	}
	prefix, _, _ := strings.Cut(key, "{")
	return driver.OtherFormat(fmt.Sprintf("the queue %q", key), found, queueFormat, "the keys that begin with "+prefix)
}

// describeTimeout is short: the server answered the failed request a moment ago.
const describeTimeout = time.Second

// redissonHolder is the form of a holder of Redisson's RLock, UUID:THREAD. Another hash, such as
// that of its read-write lock or of hasp's queue, is no RLock: no release would ever end a wait
// for it.
var redissonHolder = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d+$`)
