package serve_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/testkit"
)

func exported(t *testing.T, l *hasp.Lease) string {
	t.Helper()
	text, err := l.Export()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// wantImported imports with a client on the store itself: no other client has got in between.
func (p *pair) wantImported(t *testing.T, text string, l *hasp.Lease) {
	t.Helper()
	got, err := testkit.ClientOn(t, p.store.Backend()).Import(t.Context(), text)
	if err != nil {
		t.Fatalf("import: %v; the store has %+v", err, p.entries(t, l.Name()))
	}
	if got.Token() != l.Token() {
		t.Errorf("token %d, exported was %d", got.Token(), l.Token())
	}
	testkit.Release(t, got)
}

// The store knows an entry by another id than the core: the server has named it, because the token
// has no right to operate or because the session has moved. What is exported says the store's.
func TestExportWhatTheServerHasNamed(t *testing.T) {
	known, token := tokensOf(t, [3]string{"locker", "look,lock", "*"})
	t.Run("by a token without the right to operate", func(t *testing.T) {
		p := newPair(t, known, token["locker"])
		l := testkit.Lock(t, testkit.ClientOn(t, p.b), "a")
		p.wantImported(t, exported(t, l), l)
	})
	t.Run("after a move", func(t *testing.T) {
		p := newPair(t, nil, "")
		c := testkit.ClientOn(t, p.b)
		l, through := testkit.Lock(t, c, "a"), testkit.Lock(t, c, "b")
		p.front.lead(p.addrs[1])
		testkit.Lock(t, c, "c") // moves the session
		p.wantImported(t, exported(t, l), l)
		got, err := testkit.ClientOn(t, open(t, p.addrs[0], "")).Import(t.Context(), exported(t, through))
		if err != nil || got.Token() != through.Token() {
			t.Errorf("import through a server: %v", err)
		}
	})
}

// The exporter's session moves before the import. The entry keeps the name that is in the text, and
// the session that it is in is not closed.
func TestMoveAfterExport(t *testing.T) {
	for what, move := range map[string]func(t *testing.T, p *pair, c *hasp.Client){
		"the server has gone": func(t *testing.T, p *pair, c *hasp.Client) {
			p.front.lead(p.addrs[1])
			testkit.Lock(t, c, "other") // moves the session
		},
		"the server is about to end": func(t *testing.T, p *pair, c *hasp.Client) {
			p.front.split(func(q *http.Request) (string, <-chan struct{}) {
				if q.Method == http.MethodDelete && q.URL.Path == "/v1/session" {
					return p.addrs[0], nil // as peers pass it on
				}
				return "", nil
			})
			old := p.entries(t, "b")[0].Session
			p.front.lead(p.addrs[1])
			ctx, cancel := context.WithCancel(t.Context())
			t.Cleanup(cancel)
			go p.first.Drain(ctx)
			testkit.Eventually(t, "the move", func() bool { return p.entries(t, "b")[0].Session != old })
			time.Sleep(100 * time.Millisecond) // the old session would be closed by then
		},
	} {
		t.Run(what, func(t *testing.T) {
			p := newPair(t, nil, "")
			c := testkit.ClientOn(t, p.b)
			l, stays := testkit.Lock(t, c, "a"), testkit.Lock(t, c, "b")
			text := exported(t, l)
			move(t, p, c)
			p.wantImported(t, text, l)
			if !stays.Held() {
				t.Errorf("what was not exported is lost: %v", stays.Err())
			}
			testkit.Release(t, stays)
		})
	}
}

// While the lock passes to another server it has two names, and an export is refused: the lease
// stays as it was.
func TestExportWhileItMoves(t *testing.T) {
	asked, adopt := make(chan struct{}, 10), make(chan struct{})
	adoptNow := sync.OnceFunc(func() { close(adopt) })
	p := newPairOf(t, func(b driver.Backend) driver.Backend {
		return ticketStore{b, func(t driver.Ticket, _ driver.Request) driver.Ticket { return adoptsLater{t, asked, adopt} }}
	}, nil, "")
	t.Cleanup(adoptNow)
	c := testkit.ClientOn(t, p.b)
	l := testkit.Lock(t, c, "a")
	p.front.lead(p.addrs[1])
	moved := make(chan error, 1)
	go func() {
		_, err := c.Mutex("b").Lock(t.Context())
		moved <- err
	}()
	testkit.Await(t, "the adoption", asked)
	if _, err := l.Export(); !errors.Is(err, hasp.ErrUnknown) || !l.Held() {
		t.Errorf("export in the middle of a move: %v; held: %t", err, l.Held())
	}
	adoptNow()
	if err := testkit.Await(t, "the move", moved); err != nil {
		t.Fatal(err)
	}
	p.wantImported(t, exported(t, l), l)
}
