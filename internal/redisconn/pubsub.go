package redisconn

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/redis/rueidis"
)

// pubsub is the one connection on which everything listens. It is apart from the one that
// carries requests because rueidis hands a message to its hook on the goroutine that has
// read it, and to Receive's callback on a second one: for a goroutine that waits for nothing
// else, that is a hand-over less. Hooks belong to dedicated connections alone.
type pubsub struct {
	client rueidis.Client

	// others is how many further nodes are asked when one does not answer. In a cluster any
	// node passes on what is published at another, and one that hangs must not keep a client
	// from locking at those that do not.
	others int

	// turn is held by the goroutine that changes the connection's subscriptions. The server is
	// asked while it is held, so that it sees the changes in the order in which they were
	// made: an UNSUBSCRIBE that overtakes the next one's SUBSCRIBE would silence that. A
	// channel and not a mutex, because a waiter's context may end.
	turn chan struct{}
	conn *pubsubConn // nil: no listeners. Only for the goroutine that has the turn
}

func newPubsub(client rueidis.Client) *pubsub {
	p := &pubsub{client: client, turn: make(chan struct{}, 1)}
	if topologyOf(client) == Cluster {
		p.others = 5
	}
	return p
}

// pubsubConn is one connection, from its making to its end.
type pubsubConn struct {
	conn   rueidis.DedicatedClient
	broken chan struct{} // closed after err is set
	err    error

	mu        sync.Mutex
	listeners map[string][]*subscription // by channel; what the server was asked for
	confirmed map[string]bool            // what it has confirmed
}

type subscription struct {
	up      func()
	message func(string)
}

// subscribe is Conn.Subscribe.
func (p *pubsub) subscribe(ctx context.Context, channel string, up func(), message func(string)) error {
	s := &subscription{up, message}
	l, err := p.enter(ctx, channel, s)
	for more := p.others; err != nil && more > 0 && ctx.Err() == nil && Answered(err) == ""; more-- {
		l, err = p.enter(ctx, channel, s)
	}
	if err != nil {
		return err
	}
	defer func() {
		go func() { // no caller waits for it
			p.turn <- struct{}{}
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
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	l, err := p.open(ctx)
	if err != nil {
		<-p.turn
		return nil, err
	}
	if asked := l.add(channel, s); !asked {
		err = l.conn.Do(withoutDeadline{ctx}, l.conn.B().Subscribe().Channel(channel).Build()).Error()
	}
	if err != nil {
		// The turn goes along: the next one to come must not find a channel that looks as if
		// the server had been asked for it.
		go p.drop(l, channel, s)
		return nil, converted(err)
	}
	<-p.turn
	return l, nil
}

// open returns the present connection, or makes one; the caller has the turn. rueidis dials
// without looking at a context here, so that a dial without a caller is left to end
// by its own time-out.
func (p *pubsub) open(ctx context.Context) (*pubsubConn, error) {
	if l := p.conn; l != nil && !l.over() {
		return l, nil
	}
	made := make(chan *pubsubConn, 1)
	go func() { made <- dialPubsub(p.client) }()
	select {
	case p.conn = <-made:
		return p.conn, nil
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
	go func() {
		l.err = converted(<-ended)
		if l.err == nil {
			l.err = errors.New("the subscriptions have ended")
		}
		close(l.broken)
	}()
	return l
}

func (l *pubsubConn) over() bool {
	select {
	case <-l.broken:
		return true
	default:
		return false
	}
}

// of returns who listens to a channel. The slice is never written to again.
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

// add notes a listener and reports whether the server has been asked for its channel. If
// it has also answered, the listener is told at once.
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

// drop ends one subscription, and the connection with the last; it has the turn, and gives
// it back.
func (p *pubsub) drop(l *pubsubConn, channel string, s *subscription) {
	defer func() { <-p.turn }()
	last, none := l.remove(channel, s)
	switch {
	case none:
		if p.conn == l {
			p.conn = nil
		}
		l.conn.Close()
	case last && !l.over():
		ctx, cancel := context.WithTimeout(context.Background(), WaitBound)
		defer cancel()
		_ = l.conn.Do(withoutDeadline{ctx}, l.conn.B().Unsubscribe().Channel(channel).Build()).Error()
	}
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
