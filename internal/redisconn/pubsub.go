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
// read it, and to Receive's callback on a second one: for somebody who waits for nothing
// else, that is a hand-over less. Hooks belong to dedicated connections alone.
type pubsub struct {
	client rueidis.Client

	// others is how many further nodes are asked when one does not answer. In a cluster any
	// node passes on what is published at another, and one that hangs must not keep anybody
	// from locking at those that do not.
	others int

	// turn is held by whoever changes what the connection is subscribed to. The server is
	// asked while it is held, so that it sees the changes in the order in which they were
	// made: an UNSUBSCRIBE that overtakes the next one's SUBSCRIBE would silence that. A
	// channel and not a mutex, because whoever waits for it may lose patience.
	turn chan struct{}
	line *line // nil: nobody listens. Only for whoever has the turn
}

func newPubsub(client rueidis.Client) *pubsub {
	p := &pubsub{client: client, turn: make(chan struct{}, 1)}
	if topologyOf(client) == Cluster {
		p.others = 5
	}
	return p
}

// line is one connection, from its making to its end.
type line struct {
	conn   rueidis.DedicatedClient
	broken chan struct{} // closed after err is set
	err    error

	mu        sync.Mutex
	listeners map[string][]*subscription // by channel; what the server was asked for
	stands    map[string]bool            // what it has confirmed
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
		go func() { // nobody waits for it
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

func (p *pubsub) enter(ctx context.Context, channel string, s *subscription) (*line, error) {
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

// open returns the present line, or makes one; the caller has the turn. rueidis dials
// without looking at a context here, so that a dial that nobody waits for is left to end
// by its own time-out.
func (p *pubsub) open(ctx context.Context) (*line, error) {
	if l := p.line; l != nil && !l.over() {
		return l, nil
	}
	made := make(chan *line, 1)
	go func() { made <- dialLine(p.client) }()
	select {
	case p.line = <-made:
		return p.line, nil
	case <-ctx.Done():
		go func() { (<-made).conn.Close() }()
		return nil, ctx.Err()
	}
}

func dialLine(client rueidis.Client) *line {
	l := &line{
		broken: make(chan struct{}), listeners: map[string][]*subscription{}, stands: map[string]bool{},
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

func (l *line) over() bool {
	select {
	case <-l.broken:
		return true
	default:
		return false
	}
}

// of returns who listens to a channel. The slice is never written to again.
func (l *line) of(channel string) []*subscription {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.listeners[channel]
}

func (l *line) confirm(channel string) []*subscription {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stands[channel] = true
	return l.listeners[channel]
}

// add notes a listener and reports whether the server has been asked for its channel. If
// it has also answered, the listener is told at once.
func (l *line) add(channel string, s *subscription) (asked bool) {
	l.mu.Lock()
	old := l.listeners[channel]
	l.listeners[channel] = append(slices.Clip(old), s)
	stands := l.stands[channel]
	l.mu.Unlock()
	if stands {
		s.up()
	}
	return len(old) > 0
}

// drop ends one subscription, and the connection with the last; it has the turn, and gives
// it back.
func (p *pubsub) drop(l *line, channel string, s *subscription) {
	defer func() { <-p.turn }()
	last, none := l.remove(channel, s)
	switch {
	case none:
		if p.line == l {
			p.line = nil
		}
		l.conn.Close()
	case last && !l.over():
		ctx, cancel := context.WithTimeout(context.Background(), WaitBound)
		defer cancel()
		_ = l.conn.Do(withoutDeadline{ctx}, l.conn.B().Unsubscribe().Channel(channel).Build()).Error()
	}
}

func (l *line) remove(channel string, s *subscription) (last, none bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rest := slices.DeleteFunc(slices.Clone(l.listeners[channel]), func(x *subscription) bool { return x == s })
	if l.listeners[channel] = rest; len(rest) == 0 {
		delete(l.listeners, channel)
		delete(l.stands, channel)
	}
	return len(rest) == 0, len(l.listeners) == 0
}
