// Package redisconn has the part of a client library that hasp's Redis drivers need: scripts,
// subscriptions, and a few commands to inspect a server. It has the implementation on
// redis/rueidis; redislock/goredis has the one on go-redis.
package redisconn

import (
	"context"
	"crypto/sha1"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"

	"github.com/hasplock/hasp/driver"
)

// Script is a Lua script and the hash by which the server knows it. The files are read, and the
// hash is made, when they are first asked for: programs that link all stores have many scripts and
// start often.
type Script struct {
	prepared func() (text, sha1 string)
}

// NewScript takes the parts of a script.
func NewScript(parts ...func() string) *Script {
	return &Script{sync.OnceValues(func() (string, string) {
		var texts []string
		for _, part := range parts {
			texts = append(texts, part())
		}
		text := strings.Join(texts, "\n")
		sum := sha1.Sum([]byte(text))
		return text, hex.EncodeToString(sum[:])
	})}
}

// Text is the script.
func (s *Script) Text() string {
	text, _ := s.prepared()
	return text
}

// SHA1 is the hash of the script, in hexadecimal digits.
func (s *Script) SHA1() string {
	_, sum := s.prepared()
	return sum
}

// Call is one use of a script.
type Call struct {
	Keys, Args []string
}

// Reply is an answer: an int64, a string, nil, or a []any of these.
type Reply struct {
	Value any
	Err   error
}

// Topology is the kind of deployment behind a Conn.
type Topology string

// The topologies.
const (
	Single   Topology = "single server"
	Sentinel Topology = "master and replicas under Sentinel"
	Cluster  Topology = "cluster"
)

// Conn is a connection to a server, to the current master of a Sentinel set, or to a cluster.
// Many goroutines may call its methods at the same time. Each method returns soon after its
// context ends. None repeats a request whose answer was lost.
type Conn interface {
	// String is the address: host and port, never a user or password.
	fmt.Stringer

	Topology() Topology

	// Eval runs a script by its hash. A server that does not know the script refuses it
	// without running it, so that sending the text then repeats nothing. With replicas > 0 it
	// returns only after that many replicas have the writes, or fails; what was executed and is not
	// confirmed has a Value beside the error. A script that writes nothing confirms nothing.
	Eval(ctx context.Context, s *Script, c Call, replicas int) Reply

	// EvalAll runs a script many times, in as few round trips as possible, in any order. A WAIT
	// confirms all writes of a node.
	EvalAll(ctx context.Context, s *Script, calls []Call, replicas int) []Reply

	// Subscribe listens to a channel until ctx ends or the subscription breaks. It calls up
	// when the subscription is established. Neither up nor message may block.
	Subscribe(ctx context.Context, channel string, up func(), message func(text string)) error

	// Each calls fn for every present master.
	Each(ctx context.Context, fn func(n Node) error) error

	// NodeOf is the server that has a key in a cluster, as far as the client knows. It is for
	// grouping requests only, since requests to one node mostly succeed or fail together. If it
	// is wrong, or "" because it is unknown, requests still find their server.
	NodeOf(ctx context.Context, key string) string

	// Redial closes the present connections to one node, or with "" all, so that the next
	// request dials anew. It is for a request that ran out of time: the next request on a
	// hanging connection would hang, too. An implementation on the user's client does nothing.
	Redial(node string)

	// Close closes the connections that were opened for this Conn, never the user's client.
	Close()
}

// Node is one server.
type Node interface {
	Addr() string
	Do(ctx context.Context, args ...string) Reply
}

// ServerError is an error that the server has answered: the request is not under way any more.
type ServerError string

func (e ServerError) Error() string { return string(e) }

// Code is the first word, by which Redis tells its errors apart. Before version 7 an error
// that ended a script came wrapped: "ERR Error running script (call to f_SHA):
// @user_script:1: WRONGTYPE Operation against ...". rueidis takes an ERR in front away, and go-redis
// does not.
func (e ServerError) Code() string {
	text := string(e)
	if strings.HasPrefix(strings.TrimPrefix(text, "ERR "), "Error running script") {
		if at := strings.LastIndex(text, "@user_script:"); at >= 0 {
			_, text, _ = strings.Cut(text[at+len("@user_script:"):], ": ")
		}
	}
	code, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(text, "-"), "ERR "), " ")
	return code
}

// Answered returns the code of a ServerError in err, or "".
func Answered(err error) string {
	if err == nil { // the usual case; e would be an allocation
		return ""
	}
	var e ServerError
	if errors.As(err, &e) {
		return e.Code()
	}
	return ""
}

// refusals have cause and cure of what a server answers for as long as it is as it is, found by a
// part of the answer: most have no separate code, and rueidis takes the ERR away.
var refusals = []struct{ part, cure string }{
	{"NOAUTH", "the server wants a password, as in redis://:PASSWORD@HOST"},
	{"WRONGPASS", "the server does not let us in; check user and password"},
	{"NOPERM", "this user may not do that: docs/backends/redis.md has the rights that hasp needs"},
	{"ACL failure in script", "this user may not do in a script what hasp does: docs/backends/redis.md has the rights that hasp needs"},
	{"The user executing the script can't", "this user may not do that: docs/backends/redis.md has the rights that hasp needs"},
	{"DB index is out of range", "the server has no database of this number"},
	{"SELECT is not allowed in cluster mode", "a cluster has one database: leave its number out"},
	{"No such master", "the sentinels do not know this name: check ?sentinel=NAME"},
	{"NOPROTO", "this is an old server, or a proxy, that does not speak RESP3"},
	{"protected mode", "the server answers its own machine alone: set a password, or protected-mode no"},
	{"unknown command", "a command that hasp needs is disabled there (rename-command), or this is no Redis server but a Sentinel (then ?sentinel=NAME) or something else"},
}

// Refusal marks the errors of a server that refuses a request: for this client, so that asking
// again does not help, or in its present state, with full memory, a failing disk or missing
// replicas. EXHAUSTED is the answer of hasp's scripts when there are no more tokens, FORMAT when the
// mark is of another version.
func Refusal(err error) error {
	code := Answered(err)
	switch code {
	case "":
		return err
	case "FORMAT":
		var own, found int
		var mark string
		_, text, _ := strings.Cut(err.Error(), "FORMAT ")
		_, _ = fmt.Sscanf(text, "%d. %s %d.", &own, &mark, &found) // 0: it has none
		return driver.OtherFormat("the key "+mark, found, own, "the keys that begin with "+mark[:max(0, strings.LastIndex(mark, "mark"))])
	case "READONLY", "MASTERDOWN":
		return fmt.Errorf("%w: the server is a replica: the address does not lead to the master (with Sentinel, name that by ?sentinel=): %w", driver.ErrRefused, err)
	case "OOM", "MISCONF", "NOREPLICAS", "EXHAUSTED":
		return fmt.Errorf("%w: %w", driver.ErrRefused, err)
	}
	for _, r := range refusals {
		if strings.Contains(err.Error(), r.part) {
			return fmt.Errorf("%w (%w): %s: %w", driver.ErrRefused, driver.ErrInvalid, r.cure, err)
		}
	}
	return err
}

// unconnected adds the usual cause to an error of the connecting.
func (cfg Config) unconnected(err error) error {
	var record tls.RecordHeaderError
	secure := cfg.TLS != nil
	switch {
	case len(cfg.Addrs) > 1 && strings.Contains(err.Error(), "cluster support disabled"):
		return fmt.Errorf("%w: several hosts are nodes of a cluster or, with ?sentinel=NAME, sentinels, and these are neither; for independent servers take redlock://", driver.ErrInvalid)
	case errors.Is(err, context.DeadlineExceeded) && secure: // not the caller's context
		return fmt.Errorf("no answer within connect_timeout: does the server speak TLS on this port (else redis://)? (%v)", err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer within connect_timeout (%v)", err)
	case strings.Contains(err.Error(), "max number of clients"):
		return fmt.Errorf("all connections of the server are in use (maxclients): %w", err)
	case Answered(err) != "":
		return err
	case errors.Is(err, io.EOF) && secure, errors.Is(err, syscall.ECONNRESET) && secure:
		return fmt.Errorf("the server closed the connection before it said anything: are all its connections in use (maxclients)? %w", err)
	case errors.As(err, &record):
		return fmt.Errorf("%w: the server speaks no TLS on this port: take redis:// or its other port: %w", driver.ErrInvalid, err)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("the server closed the connection before it said anything: does it speak TLS (rediss://), are all its connections in use (maxclients), or is it a proxy (twemproxy)? %w", err)
	}
	return err
}

// ErrNotConnected marks requests that were never sent.
var ErrNotConnected = errors.New("not connected")

// NotSent reports whether an error says that nothing was sent: there was no connection, and none
// could be made.
func NotSent(err error) bool {
	var op *net.OpError
	return errors.Is(err, ErrNotConnected) || errors.As(err, &op) && op.Op == "dial"
}

// Replica reports that a server has answered that it is a replica, and has done nothing.
func Replica(err error) bool {
	code := Answered(err)
	return code == "READONLY" || code == "MASTERDOWN"
}

// RefusedNow reports that a server has answered a request, has changed nothing, and will do it when
// it is asked again: it loads its file, its disk fails, it is a replica for a moment or waits for
// its replicas. Not if the key is another program's, or the server does not let us do it at any
// time.
func RefusedNow(err error) bool {
	code := Answered(err)
	return code != "" && code != "WRONGTYPE" && !errors.Is(Refusal(err), driver.ErrInvalid)
}

// NewBackend makes a backend of package redislock on a connection; o is a *redislock.Options.
// redislock sets it for the adapters to other client libraries, which import redislock. An
// exported function of redislock would show its users a type that they cannot name.
var NewBackend func(conn Conn, o any) (driver.Backend, error)
