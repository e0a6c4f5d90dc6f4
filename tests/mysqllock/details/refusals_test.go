package mysqllock_test

import (
	"encoding/binary"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// greeter is a server that says this to each client, and then nothing more.
func greeter(t *testing.T, says string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			_, _ = c.Write([]byte(says))
		}
	}()
	return l.Addr().String()
}

// refusal is MySQL's packet of an error.
func refusal(code uint16) string {
	body := append(binary.LittleEndian.AppendUint16([]byte{0xff}, code), "#HY000no"...)
	return string(append([]byte{byte(len(body)), 0, 0, 0}, body...))
}

// Each refusal of a server is told by the first answer, with its cause and its cure; and so is a
// server of another kind.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		says, word string
		target     error
	}{
		"no connection left":     {refusal(1040), "max_connections", hasp.ErrRefused},
		"too many of the role":   {refusal(1203), "max_user_connections", hasp.ErrRefused},
		"a used up role":         {refusal(1226), "max_user_connections", hasp.ErrRefused},
		"a blocked host":         {refusal(1129), "FLUSH HOSTS", hasp.ErrRefused},
		"another host":           {refusal(1130), "CREATE USER", hasp.ErrInvalid},
		"a password":             {refusal(1045), "tls=true", hasp.ErrInvalid},
		"another authentication": {refusal(1698), "authenticates", hasp.ErrRefused},
		"no such database":       {refusal(1049), "no such database", hasp.ErrInvalid},
		"an expired password":    {refusal(1862), "ALTER USER", hasp.ErrRefused},
		"a locked role":          {refusal(3118), "ACCOUNT UNLOCK", hasp.ErrRefused},
		"offline mode":           {refusal(3032), "offline_mode", hasp.ErrRefused},
		"TLS alone":              {refusal(3159), "tls=true", hasp.ErrInvalid},
		"SSH":                    {"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", "MySQL server", nil},
		"HTTP/2":                 {"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00", "MySQL server", nil},
		"silence":                {"", "MySQL server", nil},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			_, err := openAt(t, "mysql://u:s3cret@"+greeter(t, c.says)+"/locks?connect_timeout=500ms")
			if err == nil || !strings.Contains(err.Error(), c.word) || strings.Contains(err.Error(), "s3cret") || c.target != nil && !errors.Is(err, c.target) {
				t.Errorf("%v; want %q, wrapping %v", err, c.word, c.target)
			}
			if took := time.Since(began); took > slack/2 {
				t.Errorf("told after %s", took)
			}
		})
	}
}

// A server on this machine is reached by its Unix socket, with a renewal, a wait and both
// strategies.
func TestUnixSocket(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	base, err := url.Parse(sqlkit.MariaDBStore(t, m))
	if err != nil {
		t.Fatal(err)
	}
	var socket string
	if err := sqlkit.MariaDBAdmin(t, m).QueryRow("SELECT @@socket").Scan(&socket); err != nil {
		t.Fatal(err)
	}
	for _, strategy := range []string{"table", "getlock"} {
		u := "mysql://" + base.User.String() + "@" + url.PathEscape(socket) + base.Path + "?prefix=unix_&strategy=" + strategy
		c, other := client(t, u), client(t, u)
		l := testkit.Lock(t, c, "a")
		next := testkit.Locking(t, other, "a")
		testkit.Release(t, l)
		testkit.Release(t, testkit.Granted(t, next))
		if label := c.Store(); !strings.Contains(label, "%2F") {
			t.Errorf("it is called %s", label)
		}
	}
	_, err = openAt(t, "mysql://u@%2Fnowhere%2Fmysqld.sock/locks")
	if err == nil || !strings.Contains(err.Error(), "/nowhere/mysqld.sock") {
		t.Errorf("a socket that is not there: %v", err)
	}
}

func openAt(t *testing.T, storeURL string) (*hasp.Client, error) {
	t.Helper()
	c, err := hasp.Open(ctx(t), storeURL)
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}
