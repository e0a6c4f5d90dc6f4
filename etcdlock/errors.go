package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/hasplock/hasp/driver"
)

// refusals are answers by which etcd says that it has not done, and will not do, what was
// asked. All other errors leave the outcome open, also those that etcd itself sends: a
// proposal that timed out may still be applied, and one that finds no space is applied where it
// is the first to find none (see isFull).
var refusals = []error{
	rpctypes.ErrLeaseNotFound, rpctypes.ErrTooManyRequests, rpctypes.ErrRequestTooLarge,
	rpctypes.ErrPermissionDenied, rpctypes.ErrUserEmpty, rpctypes.ErrInvalidAuthToken, rpctypes.ErrTooManyOps,
	errNotSent, errLearner,
}

// errLearner says that a call has come to a member that does not vote yet. The client leads each
// call to the next of the endpoints that it is connected to, so what was refused is asked again, a few
// times: other calls take their turns in between, and the connection to another member may not be
// there yet.
var errLearner = rpctypes.Error(rpctypes.ErrGRPCNotSupportedForLearner)

const learnerTries = 16

func pastLearners(call func() error) error {
	err := call()
	for i := 0; i < learnerTries && errors.Is(rpctypes.Error(err), errLearner); i++ {
		time.Sleep(time.Duration(i) * 5 * time.Millisecond) // the first time at once
		err = call()
	}
	return err
}

func refused(err error) bool { return isAny(err, refusals) }

// misconfigured are refusals that only another setting can cure.
var misconfigured = []error{
	rpctypes.ErrAuthFailed, rpctypes.ErrUserNotFound, rpctypes.ErrInvalidAuthMgmt,
	rpctypes.ErrLeaseTTLTooLarge, rpctypes.ErrRequestTooLarge, rpctypes.ErrTooManyOps,
}

func isAny(err error, of []error) bool {
	for _, e := range of {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func isGone(err error) bool { return errors.Is(err, driver.ErrGone) }

// explain turns the error of a call into one of the contract's. caller is the context the
// core gave us, which the call's own deadline was made from.
func explain(caller context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	if cause := caller.Err(); cause != nil {
		return cause
	}
	err = rpctypes.Error(err)
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return fmt.Errorf("%w: etcd: %w", driver.ErrGone, err)
	case errors.Is(err, rpctypes.ErrAuthFailed), errors.Is(err, rpctypes.ErrUserNotFound):
		return fmt.Errorf("%w (%w): etcd will not %s: %w", driver.ErrRefused, driver.ErrInvalid, doing, err)
	case isAny(err, misconfigured):
		return fmt.Errorf("%w: etcd will not %s: %w", driver.ErrInvalid, doing, err)
	case errors.Is(err, rpctypes.ErrPermissionDenied), errors.Is(err, rpctypes.ErrUserEmpty):
		return fmt.Errorf("%w: etcd will not let this user %s: %w%s", driver.ErrRefused, doing, err, cure(err))
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%w: etcd will not %s: %w%s", driver.ErrRefused, doing, err, cure(err))
	}
	return fmt.Errorf("etcd: %s: %w", doing, err)
}

// cures are what to do about errors that have these words: about refusals, and about what a first
// connection fails with.
var cures = []struct{ words, cure string }{
	{"database space exceeded", "compact, defragment, then etcdctl alarm disarm"},
	{"user name is empty", "put USER:PASSWORD@ into the URL"},
	{"permission denied", "etcdctl role grant-permission ROLE readwrite PREFIX --prefix=true; the prefix is hasp/ if the URL has none"},
	{"not supported for learner", "take the learner out of the URL, or promote it"},
	{"unknown authority", "name the authority's certificate with ca=FILE"},
	{"certificate required", "name the client's certificate with cert=FILE and key=FILE"},
	{"handshake failed: EOF", "does the server speak TLS? If not, take tls, ca and cert out of the URL"},
	{"not look like a TLS handshake", "the server does not speak TLS: take tls, ca and cert out of the URL"},
	{"looked like an HTTP/1.1 header", "this is a web server, and not etcd's client port"},
	{"EOF", demandsTLS},
	{"server preface: read tcp", "no answer came: wrong address, or a firewall?"},
	{"no answer within", "wrong address, or a firewall?"},
}

const demandsTLS = "does the server demand TLS, or a client's certificate? Then put tls=true or ca=FILE, cert=FILE and key=FILE into the URL"

// hungUp is how an end of the connection reads when the server had not read all that was sent: the
// system then answers with a reset, before or after the server's last words. It means EOF too.
var hungUp = regexp.MustCompile(`(read|write) tcp \S+ (read|write): (connection reset by peer|broken pipe)`)

func cure(err error) string {
	text := hungUp.ReplaceAllString(err.Error(), "EOF")
	for _, c := range cures {
		if strings.Contains(text, c.words) {
			return " (" + c.cure + ")"
		}
	}
	return ""
}
