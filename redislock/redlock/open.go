package redlock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// schemes are the URL schemes, and whether they mean TLS.
var schemes = map[string]bool{"redlock": false, "redlocks": true}

func init() {
	for scheme := range schemes {
		driver.Register(scheme, openURL)
	}
}

// Options are the settings of a store. nil or the zero value means the defaults.
type Options struct {
	// Prefix begins every key. Default: nothing, since keys are shared with other libraries.
	Prefix string

	// NoQuarantine grants locks also at servers that may have forgotten earlier ones. Default: such
	// a server has no vote until the longest TTL in use there is over, of which an emptied server
	// knows only that of the client that comes first: give all clients one TTL.
	NoQuarantine bool

	// NodeTimeout is how long an attempt waits for servers that do not answer, when it
	// depends on them. At most a quarter of the TTL. Default: a tenth of the TTL, from
	// 50 ms to 2 s.
	NodeTimeout time.Duration
}

// plainPrefix has no special characters of Redis or of a terminal.
var plainPrefix = regexp.MustCompile(`^[A-Za-z0-9_.:/-]{1,64}$`)

func (o *Options) checked() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	switch {
	case r.Prefix != "" && !plainPrefix.MatchString(r.Prefix):
		return r, fmt.Errorf("%w: the prefix has 1 to 64 letters, digits and _ . : / -", driver.ErrInvalid)
	case strings.HasPrefix(r.Prefix, setnx.CompanionPrefix):
		return r, fmt.Errorf("%w: keys that begin with %q are taken; choose another prefix", driver.ErrInvalid, setnx.CompanionPrefix)
	case r.NodeTimeout < 0:
		return r, fmt.Errorf("%w: the time-out for a server cannot be negative", driver.ErrInvalid)
	}
	return r, nil
}

// mostNodes is the number of announcements that fit into one word.
const mostNodes = 63

// checkCount refuses a number of servers without a useful majority.
func checkCount(n int) error {
	switch {
	case n < 3:
		return fmt.Errorf("%w: redlock needs three independent servers at the least, not %d: with fewer, none may fail. For one server use redis://", driver.ErrInvalid, n)
	case n > mostNodes:
		return fmt.Errorf("%w: %d servers are more than redlock can count (%d)", driver.ErrInvalid, n, mostNodes)
	case n%2 == 0:
		return fmt.Errorf("%w: redlock needs an odd number of servers, not %d: the last one tolerates no failure that %d do not, and makes ties", driver.ErrInvalid, n, n-1)
	}
	return nil
}

// New makes a backend on your clients, one for each server, which it does not close.
// Their number is odd and at least three. A client of a cluster or of a Sentinel set is
// refused, and so are two clients of one server. A minority of the servers may be away.
func New(ctx context.Context, clients []rueidis.Client, o *Options) (driver.Backend, error) {
	conns := make([]redisconn.Conn, len(clients))
	for i, c := range clients {
		conns[i] = redisconn.FromRueidis(c)
	}
	return open(ctx, conns, o)
}

// Open connects to the store that a URL names; docs/backends/redlock.md has its parameters. ctx
// bounds the connecting only. It is for programs that want the backend itself: hasp.Open makes a
// client, and takes the core's parameters (ttl, margin) as well.
func Open(ctx context.Context, storeURL string) (driver.Backend, error) {
	return driver.Open(ctx, storeURL, slices.Collect(maps.Keys(schemes))...)
}

func openURL(ctx context.Context, u *url.URL) (driver.Backend, error) {
	p := driver.NewParams(u.Query())
	o := Options{
		Prefix:       p.String("prefix", ""),
		NoQuarantine: driver.OneOf(p, "quarantine", "on", "off") == "off",
		NodeTimeout:  p.Duration("node_timeout", 0),
	}
	cfg, err := redisconn.Parse(u, p, schemes[u.Scheme])
	if err == nil {
		err = p.Err()
	}
	if err == nil && cfg.Sentinel != "" {
		err = fmt.Errorf("%w: the servers of redlock are independent; for a Sentinel set use redis:// with sentinel=NAME", driver.ErrInvalid)
	}
	if err == nil {
		err = checkCount(len(cfg.Addrs))
	}
	if err == nil {
		err = distinct(cfg.Addrs)
	}
	if err != nil {
		return nil, err
	}
	conns := make([]redisconn.Conn, len(cfg.Addrs))
	for i, addr := range cfg.Addrs {
		one := cfg
		one.Label, one.Addrs = addr, []string{addr}
		conns[i] = newLazy(one)
	}
	b, err := open(ctx, conns, &o)
	if err != nil {
		for _, c := range conns {
			c.Close()
		}
	}
	return b, err
}

func distinct(addrs []string) error {
	for i, a := range addrs {
		if slices.Contains(addrs[:i], a) {
			return fmt.Errorf("%w: %s is given twice, and would vote twice", driver.ErrInvalid, a)
		}
	}
	return nil
}

func open(ctx context.Context, conns []redisconn.Conn, o *Options) (*store, error) {
	opts, err := o.checked()
	if err == nil {
		err = checkCount(len(conns))
	}
	if err != nil {
		return nil, err
	}
	b := newStore(conns, opts)
	if err := b.meet(ctx); err != nil {
		b.end()
		return nil, err
	}
	return b, nil
}

// meet connects to the servers and refuses those that cannot vote. A majority is enough: it
// connects to the others when they can be reached, or let it in. It does not examine a server that
// comes later. If that is one of the others under a second address, exclusion still holds, because
// each vote is a key with one holder; only fewer failures are tolerated. The doctor reports it.
func (b *store) meet(ctx context.Context) error {
	ids, errs := make([]string, len(b.nodes)), make([]error, len(b.nodes))
	var wg sync.WaitGroup
	for i, n := range b.nodes {
		wg.Go(func() { ids[i], errs[i] = n.meet(ctx) })
	}
	wg.Wait()
	seen := map[string]*node{}
	for i, n := range b.nodes {
		// One whose credentials are about to be changed is not wrong, but as good as away.
		if errors.Is(errs[i], driver.ErrInvalid) && !errors.Is(errs[i], driver.ErrRefused) {
			return errs[i]
		}
		if other := seen[ids[i]]; other != nil && ids[i] != "" {
			return fmt.Errorf("%w: %s and %s are the same server, which would vote twice", driver.ErrInvalid, other, n)
		}
		seen[ids[i]] = n
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return b.enough(errs)
}

// enough is nil if a majority has no error; otherwise it has the others' errors.
func (b *store) enough(errs []error) error {
	good := 0
	for _, err := range errs {
		if err == nil {
			good++
		}
	}
	if good >= b.quorum {
		return nil
	}
	return fmt.Errorf("%d of %d servers answer, and %d are needed (%w)", good, len(b.nodes), b.quorum, b.reason(errs, len(b.nodes)-b.quorum))
}

// reason chooses among the servers' errors the one to tell, if all servers but spare are needed.
//
// A refusal is the store's only if no majority can be had without those that refuse. One server's
// password may have been changed before the others', and its memory be full: a waiter must not
// give up for it because another server is silent for a moment. Such a refusal is told as text.
func (b *store) reason(errs []error, spare int) error {
	var invalid, refused, other []error
	for i, err := range errs {
		if err == nil {
			continue
		}
		switch err = b.nodes[i].named(err); {
		case errors.Is(err, driver.ErrInvalid):
			invalid = append(invalid, err)
		case errors.Is(err, driver.ErrRefused):
			refused = append(refused, err)
		default:
			other = append(other, err)
		}
	}
	all := slices.Concat(invalid, refused, other)
	switch n := len(invalid) + len(refused); {
	case len(all) == 0:
		return nil
	case len(invalid) > spare, n == 0:
		return all[0]
	case n > spare: // some may change their mind
		return refused[0]
	}
	return errors.New(all[0].Error())
}
