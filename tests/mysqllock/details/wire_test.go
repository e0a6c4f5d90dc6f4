package mysqllock_test

import (
	"bytes"
	"context"
	"database/sql"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/mysqllock"
)

// wired is a session of a client whose connections are made by dial. A client uses several, and a
// proxy does not know which is for what.
func wired(t *testing.T, prefix string, dial func() (net.Conn, error)) driver.Session {
	t.Helper()
	m := backends.SharedMariaDB(t)
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.User, cfg.Passwd, cfg.DBName = "tcp", m.Addr, m.User, m.Password, "locks"
	cfg.Logger = &mysql.NopLogger{}
	cfg.DialFunc = func(context.Context, string, string) (net.Conn, error) { return dial() }
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() { db.Close() })
	db.SetMaxIdleConns(-1) // what is not kept for renewals or for waiting is made anew
	b, err := mysqllock.New(db, &mysqllock.Options{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	return testkit.Session(t, b, time.Hour, nil)
}

// slowWire holds the answer to a request that has this text until it opens.
type slowWire struct {
	net.Conn
	text  string
	asked *atomic.Bool
	open  <-chan struct{}
	holds atomic.Bool
}

func (w *slowWire) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(w.text)) {
		w.holds.Store(true)
		w.asked.Store(true)
	}
	return w.Conn.Write(b)
}

func (w *slowWire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if w.holds.Load() {
		<-w.open
	}
	return n, err
}

// cutWire holds a request that has this text until it opens, and ends after a part of the answer.
type cutWire struct {
	net.Conn
	text string
	open <-chan struct{}
	cuts *atomic.Int64
	most atomic.Int64 // what is still to arrive of the answer, and 1; 0 is no bound
}

func (w *cutWire) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(w.text)) {
		select {
		case <-w.open:
		default:
			<-w.open
			w.most.Store(1000)
		}
	}
	return w.Conn.Write(b)
}

func (w *cutWire) Read(b []byte) (int, error) {
	most := w.most.Load()
	if most == 0 {
		return w.Conn.Read(b)
	}
	if most == 1 {
		w.cuts.Add(1)
		w.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	n, err := w.Conn.Read(b[:min(int64(len(b)), most-1)])
	w.most.Add(-int64(n))
	return n, err
}
