package redisconn

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// pubsub is the connection for all subscriptions. It is a dedicated one:
// rueidis calls a hook on the goroutine that has read the message, and Receive's callback on a
// second goroutine. The hook saves that hand-over, and only dedicated connections have hooks.
type pubsub struct {
	client rueidis.Client

	// requests says that the connection is also for requests, and stays open without listeners.
	requests bool

	// retries is how many more nodes are tried when one does not answer. In a cluster every node
	// forwards the messages that are published at another, and a node that hangs must not keep
	// a client from locking at the others.
	retries int

	// lock is held by the goroutine that changes the connection's subscriptions, also during
	// its request, so that the server sees the changes in their order: an UNSUBSCRIBE that
	// arrives after the next SUBSCRIBE to the channel would end that subscription. A channel and
	// not a mutex, because the context of a goroutine that waits for it may end.
	lock   chan struct{}
	conn   atomic.Pointer[pubsubConn] // the last one, nil at first. Changed with the lock
	made   atomic.Int64               // connections
	closed bool                       // guarded by lock
}

func newPubsub(client rueidis.Client) *pubsub {
	p := &pubsub{client: client, lock: make(chan struct{}, 1)}
	if topologyOf(client) == Cluster {
		p.retries = 5
	}
	return p
}

// pubsubConn is one connection, from its start to its end.
type pubsubConn struct {
	conn   rueidis.DedicatedClient
	broken chan struct{} // closed after err is set
	err    error

	mu        sync.Mutex
	listeners map[string][]*subscription // by channel, once the server has been asked
	confirmed map[string]bool            // channels that the server has confirmed
}

type subscription struct {
	up      func()
	message func(string)
}

// subscribe is Conn.Subscribe.
func (p *pubsub) subscribe(ctx context.Context, channel string, up func(), message func(string)) error {
	s := &subscription{up, message}
	l, err := p.enter(ctx, channel, s)
	for more := p.retries; err != nil && more > 0 && ctx.Err() == nil && Answered(err) == ""; more-- {
		l, err = p.enter(ctx, channel, s)
	}
	if err != nil {
		return err
	}
	defer func() {
		go func() { // in the background: no caller waits for it
			p.lock <- struct{}{}
			p.drop(l, channel, s)
		}()
	}()
	select {
	case <-l.broken:
		return l.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *pubsub) enter(ctx context.Context, channel string, s *subscription) (*pubsubConn, error) {
	select {
	case p.lock <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	l, err := p.open(ctx)
	if err != nil {
		<-p.lock
		return nil, err
	}
	if asked := l.add(channel, s); !asked {
		err = l.conn.Do(withoutDeadline{ctx}, l.conn.B().Subscribe().Channel(channel).Build()).Error()
	}
	if err != nil {
		// drop takes over the lock: the next goroutine must not find a channel that looks as
		// if the server had been asked for it.
		go p.drop(l, channel, s)
		return nil, convertError(err)
	}
	<-p.lock
	return l, nil
}

// stands returns the connection if there is one.
func (p *pubsub) stands() *pubsubConn {
	if l := p.conn.Load(); l != nil && !l.ended() {
		return l
	}
	return nil
}

// use returns the connection, for requests. Those that wait for one to be made share the outcome,
// also if it fails: each of them dialling after the other would keep the last one waiting for long.
func (p *pubsub) use(ctx context.Context) (rueidis.CommandClient, error) {
	if l := p.stands(); l != nil {
		return l.conn, nil
	}
	before := p.made.Load()
	select {
	case p.lock <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-p.lock }()
	if l := p.conn.Load(); l != nil && p.made.Load() > before {
		if l.ended() {
			return nil, l.err
		}
		return l.conn, nil
	}
	l, err := p.open(ctx)
	if err != nil {
		return nil, err
	}
	return l.conn, nil
}

// close ends the connection, unless there are listeners: the last of them does.
func (p *pubsub) close() {
	p.lock <- struct{}{}
	defer func() { <-p.lock }()
	p.closed = true
	if l := p.conn.Load(); l != nil && l.unused() {
		l.conn.Close()
	}
}

// open returns the present connection, or makes one; the caller has the lock. rueidis takes no
// context for this dial, so that an abandoned dial ends by its time-out.
func (p *pubsub) open(ctx context.Context) (*pubsubConn, error) {
	if l := p.stands(); l != nil {
		return l, nil
	}
	old := p.conn.Load()
	made := make(chan *pubsubConn, 1)
	go func() { made <- dialPubsub(p.client) }()
	select {
	case l := <-made:
		if old != nil && old.unused() {
			old.conn.Close() // otherwise its last listener does
		}
		p.conn.Store(l)
		p.made.Add(1)
		if l.ended() {
			return nil, l.err
		}
		return l, nil
	case <-ctx.Done():
		go func() { (<-made).conn.Close() }()
		return nil, ctx.Err()
	}
}

func dialPubsub(client rueidis.Client) *pubsubConn {
	l := &pubsubConn{
		broken: make(chan struct{}), listeners: map[string][]*subscription{}, confirmed: map[string]bool{},
	}
	l.conn, _ = client.Dedicate() // Close gives it back
	ended := l.conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) {
			for _, s := range l.of(m.Channel) {
				s.message(m.Message)
			}
		},
		OnSubscription: func(s rueidis.PubSubSubscription) {
			if s.Kind == "subscribe" {
				for _, s := range l.confirm(s.Channel) {
					s.up()
				}
			}
		},
	})
	select {
	case err := <-ended: // there is no connection
		l.end(err)
	default:
		go func() { l.end(<-ended) }()
	}
	return l
}

func (l *pubsubConn) end(err error) {
	if l.err = convertError(err); err == nil {
		l.err = errors.New("the subscriptions have ended")
	}
	close(l.broken)
}

func (l *pubsubConn) ended() bool {
	select {
	case <-l.broken:
		return true
	default:
		return false
	}
}

// of returns the listeners of a channel. The slice is never written to again.
func (l *pubsubConn) of(channel string) []*subscription {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.listeners[channel]
}

func (l *pubsubConn) confirm(channel string) []*subscription {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.confirmed[channel] = true
	return l.listeners[channel]
}

// add adds a listener and reports whether the server has been asked for its channel. If the
// server has also answered, add calls the listener's up at once.
func (l *pubsubConn) add(channel string, s *subscription) (asked bool) {
	l.mu.Lock()
	old := l.listeners[channel]
	l.listeners[channel] = append(slices.Clip(old), s)
	confirmed := l.confirmed[channel]
	l.mu.Unlock()
	if confirmed {
		s.up()
	}
	return len(old) > 0
}

// drop ends one subscription, and closes the connection with the last one, unless it is for requests,
// too. The caller has the lock, and drop releases it.
func (p *pubsub) drop(l *pubsubConn, channel string, s *subscription) {
	defer func() { <-p.lock }()
	last, none := l.remove(channel, s)
	current := p.conn.Load() == l
	switch {
	case none && (!current || !p.requests || p.closed):
		if current {
			p.conn.Store(nil)
		}
		l.conn.Close()
	case last && !l.ended():
		ctx, cancel := context.WithTimeout(context.Background(), WaitBound)
		defer cancel()
		_ = l.conn.Do(withoutDeadline{ctx}, l.conn.B().Unsubscribe().Channel(channel).Build()).Error()
	}
}

// unused reports that there are no listeners.
func (l *pubsubConn) unused() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.listeners) == 0
}

func (l *pubsubConn) remove(channel string, s *subscription) (last, none bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rest := slices.DeleteFunc(slices.Clone(l.listeners[channel]), func(x *subscription) bool { return x == s })
	if l.listeners[channel] = rest; len(rest) == 0 {
		delete(l.listeners, channel)
		delete(l.confirmed, channel)
	}
	return len(rest) == 0, len(l.listeners) == 0
}
