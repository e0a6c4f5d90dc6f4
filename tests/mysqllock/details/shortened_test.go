package mysqllock_test

import (
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/mysqllock"
)

// shortener hands on what a client and a server send, and while it is on it cuts packets of the
// server short: of each the end is missing, and the length in front fits.
type shortener struct {
	net.Listener
	on  atomic.Bool
	cut atomic.Int64
}

func newShortener(t *testing.T, server string) *shortener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &shortener{Listener: l}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			go func() { io.Copy(to, client); to.Close() }()
			go func() { s.answers(client, to); client.Close() }()
		}
	}()
	return s
}

func (s *shortener) answers(client io.Writer, server io.Reader) {
	for n := 0; ; n++ {
		head := make([]byte, 4)
		if _, err := io.ReadFull(server, head); err != nil {
			return
		}
		body := make([]byte, int(head[0])|int(head[1])<<8|int(head[2])<<16)
		if _, err := io.ReadFull(server, body); err != nil {
			return
		}
		if s.on.Load() && len(body) > 1 {
			keep := 1 + n%(len(body)-1) // of one connection another rest each time
			body = body[:keep]
			var length [4]byte
			binary.LittleEndian.PutUint32(length[:], uint32(keep))
			copy(head, length[:3])
			s.cut.Add(1)
		}
		if _, err := client.Write(append(head, body...)); err != nil {
			return
		}
	}
}

// Answers that are shorter than they have to be end no program: they are errors, their connections
// are given up, and when the server answers as it should all goes on, with all of the pool's
// connections. At the end the client can be closed. A lock that is held is lost at worst.
func TestShortenedAnswers(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	for _, c := range []struct {
		what string
		open func(t *testing.T, addr, prefix string) *hasp.Client
	}{
		{"table", func(t *testing.T, addr, prefix string) *hasp.Client { return urlClient(t, m, addr, prefix, "table") }},
		{"getlock", func(t *testing.T, addr, prefix string) *hasp.Client { return urlClient(t, m, addr, prefix, "getlock") }},
		{"a pool of the user's", func(t *testing.T, addr, prefix string) *hasp.Client {
			db, err := sql.Open("mysql", fmt.Sprintf("%s:%s@tcp(%s)/locks", m.User, m.Password, addr))
			if err != nil {
				t.Fatal(err)
			}
			b, err := mysqllock.New(db, &mysqllock.Options{Prefix: prefix})
			if err != nil {
				t.Fatal(err)
			}
			h, err := hasp.New(b, hasp.WithTTL(lasting))
			if err != nil {
				t.Fatal(err)
			}
			return h
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			sqlkit.MariaDBStore(t, m) // makes the database
			prefix := "short_" + strings.ReplaceAll(strings.ReplaceAll(c.what, " ", "_"), "'", "") + "_"
			p := newShortener(t, m.Addr)
			h := c.open(t, p.Addr().String(), prefix)
			held := testkit.Lock(t, h, "held")
			p.on.Store(true)
			var all sync.WaitGroup
			for k := range 8 {
				all.Go(func() {
					for until := time.Now().Add(lasting / 2); time.Now().Before(until); {
						short, cancel := context.WithTimeout(ctx(t), 200*time.Millisecond)
						if l, err := h.Mutex(fmt.Sprint("a-", k%4)).Lock(short); err == nil {
							_ = l.Release(short)
						}
						cancel()
					}
				})
			}
			all.Wait()
			p.on.Store(false)
			if p.cut.Load() < 20 {
				t.Errorf("%d packets were cut short: this has tested nothing", p.cut.Load())
			}
			t.Logf("%d packets cut short; held: %t", p.cut.Load(), held.Held())
			fresh := make(chan *hasp.Lease, 8)
			for k := range 8 { // all of the pool
				all.Go(func() { fresh <- testkit.LockDespiteErrors(t, h, fmt.Sprint("after-", k)) })
			}
			all.Wait()
			for range 8 {
				testkit.Release(t, <-fresh)
			}
			closed := make(chan error, 1)
			go func() { closed <- h.Close() }()
			select {
			case <-closed:
			case <-time.After(slack):
				t.Error("the client cannot be closed")
			}
		})
	}
}

func urlClient(t *testing.T, m *backends.MariaDB, addr, prefix, strategy string) *hasp.Client {
	t.Helper()
	at := *m
	at.Addr = addr
	return client(t, sqlkit.With(sqlkit.MariaDBStore(t, &at), "prefix="+prefix, "strategy="+strategy), hasp.WithTTL(lasting))
}
