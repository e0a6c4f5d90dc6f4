package hasp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Client makes locks on one store. It is safe for use by many goroutines, and one per
// store and process suits most programs: all its locks share one session, one
// renewal and one connection or pool.
type Client struct {
	backend     driver.Backend
	traits      driver.Traits
	cfg         config
	owner       string // cfg.owner, encoded
	prefix      string // of every entry id; random, so that ids are unique for ever
	nextID      atomic.Uint64
	localQueues localQueues
	asking      atomic.Int32 // see overdue

	mu       sync.Mutex
	closed   bool
	sealed   bool     // Close waits for what is working, nothing may be added
	current  *session // nil, live, or ended and about to be replaced
	opening  *opening // non-nil while one goroutine opens a session
	openWait backoff  // spaces the attempts to open; used by that goroutine alone

	open       context.Context // ends when Close begins
	closing    context.CancelFunc
	background context.Context // of cleaning up; ends when Close gives up on it
	giveUp     context.CancelFunc
	working    sync.WaitGroup // jobs in the background
}

// New makes a Client of a driver's backend, for those who have a store's client at hand
// (redislock.New and the like). The Client owns the backend and closes it.
func New(b driver.Backend, opts ...Option) (*Client, error) {
	cfg, err := newConfig(opts)
	if err == nil {
		err = cfg.check(b.Traits())
	}
	if err != nil {
		return nil, fmt.Errorf("hasp: open %s: %w", b, err)
	}
	c := &Client{
		backend: b,
		traits:  b.Traits(),
		cfg:     cfg,
		owner:   cfg.owner.encode(),
		prefix:  strings.ToLower(rand.Text()[:16]) + "-", // 80 random bits
	}
	c.open, c.closing = context.WithCancel(context.Background())
	c.background, c.giveUp = context.WithCancel(context.Background())
	if d, ok := b.(driver.Diagnoser); ok && len(cfg.observe) > 0 {
		c.inBackground(func() { c.warn(d) })
	}
	return c, nil
}

// warnBound is how long the store has to report its settings.
const warnBound = 5 * time.Second

// warn tells the observers of settings that break a promise. If the store does not answer, or does
// not show its settings, it says nothing: the requests for locks will report that.
func (c *Client) warn(d driver.Diagnoser) {
	ctx, cancel := context.WithTimeout(c.open, warnBound)
	defer cancel()
	findings, err := d.Warnings(ctx)
	for _, f := range findings {
		if err == nil && f.Level == driver.Bad {
			c.event(Event{Kind: EventWarning, Err: fmt.Errorf("%s: %s; %s", f.Subject, f.Text, f.Cure)})
		}
	}
}

// Store returns what the client locks on, as messages and metrics name it: without a user or a
// password.
func (c *Client) Store() string { return c.backend.String() }

// Backend returns the driver's backend, for authors of drivers and for operators: for what only
// one store's driver can do (StillHeld of etcdlock), and for its doctor.
func (c *Client) Backend() driver.Backend { return c.backend }

// Traits returns what the store promises.
func (c *Client) Traits() driver.Traits { return c.traits }

// closeBound is how long Close waits for the store before it leaves the rest to the TTL. Then the
// driver's calls have cancelBound to notice that they were cancelled, and closeWithin is for all,
// the driver's Close included.
const (
	closeBound  = 5 * time.Second
	cancelBound = time.Second
	closeWithin = 6900 * time.Millisecond
)

// Close gives up every lock of the client (its leases are lost with reason ReasonClosed,
// waiting calls return ErrClosed) and closes the store's backend. It returns within seven
// seconds even if the network is silent; entries it could not remove by then end with
// the TTL. If the store's client ends neither its requests nor its connections by then, the error
// says so: they go on in the background. Closing twice is harmless.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true // no session is opened from here on
	s := c.current
	c.mu.Unlock()

	c.closing()
	if s != nil {
		s.end(ReasonClosed, ErrClosed) // starts to clean up
	}
	c.mu.Lock()
	c.sealed = true // what comes now is covered by the closing of its session
	c.mu.Unlock()

	end := time.After(closeWithin)
	idle := begin(c.working.Wait)
	if !endsBefore(idle, time.After(closeBound)) {
		c.giveUp()
	}
	var left []string
	if !endsBefore(idle, time.After(cancelBound)) {
		left = append(left, "requests that were cancelled")
	}
	c.giveUp()
	var err error
	closed := begin(func() { err = c.backend.Close() })
	if !endsBefore(closed, end) {
		left = append(left, "the closing of its connections")
	}
	if len(left) > 0 {
		return fmt.Errorf("hasp: close %s: the store's client has not ended %s within %s; locks that it could not release end with the TTL",
			c.backend, strings.Join(left, ", nor "), closeWithin)
	}
	return err
}

func begin(job func()) (ended <-chan struct{}) {
	ch := make(chan struct{})
	go func() {
		defer close(ch)
		job()
	}()
	return ch
}

func endsBefore(ended <-chan struct{}, late <-chan time.Time) bool {
	select {
	case <-ended:
		return true
	case <-late:
		return false
	}
}

func (c *Client) newID() string {
	return c.prefix + strconv.FormatUint(c.nextID.Add(1), 36)
}

// work counts a background job in, unless Close no longer waits for any. The count is
// guarded by mu so that it never rises from zero while Close waits on it.
func (c *Client) work() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sealed {
		return false
	}
	c.working.Add(1)
	return true
}

// inBackground runs a job that Close waits for: what a cancelled or failed call left in the
// store must go although its caller has gone.
func (c *Client) inBackground(job func()) {
	if !c.work() {
		return
	}
	go func() {
		defer c.working.Done()
		job()
	}()
}

// clean runs fn until it succeeds or can do no more, or until a context ends. Its own context has
// the values of the call that it cleans up after, for the traces of a store's client.
func (c *Client) clean(values, until context.Context, fn func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(values))
	defer cancel()
	defer context.AfterFunc(until, cancel)()
	defer context.AfterFunc(c.background, cancel)()
	var b backoff
	for {
		err := c.attempt(ctx, fn)
		if err == nil || errors.Is(err, driver.ErrGone) || errors.Is(err, driver.ErrForgotten) || final(err) || !b.sleep(ctx) {
			return
		}
	}
}

// attempt bounds one call that a silent server would keep for ever.
func (c *Client) attempt(ctx context.Context, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, max(c.cfg.ttl, closeBound))
	defer cancel()
	return fn(ctx)
}

// cleanTicket has an entry leave, for as long as its session lives: the session keeps
// alive all that is left in it, so that no shorter bound would do. With the session
// everything in it goes.
func (c *Client) cleanTicket(values context.Context, s *session, t driver.Ticket) {
	c.inBackground(func() { c.clean(values, s.done, t.Leave) })
}

// closeSession has the store forget a session. After twice the TTL there is nothing left
// to forget.
func (c *Client) closeSession(d driver.Session) {
	ctx, cancel := context.WithTimeout(c.background, max(2*c.cfg.ttl, closeBound))
	defer cancel()
	c.clean(ctx, ctx, d.Close)
}
