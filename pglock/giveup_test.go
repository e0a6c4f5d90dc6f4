package pglock

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
)

// behindPooler reports whether the server sees another client than us.
func behindPooler(t *testing.T) bool {
	t.Helper()
	conn := connect(t, serverURL(t))
	var port int
	if err := conn.QueryRow(limited(t), "SELECT inet_client_port()").Scan(&port); err != nil {
		t.Fatal(err)
	}
	return port != conn.PgConn().Conn().LocalAddr().(*net.TCPAddr).Port
}

// A client whose release was not answered makes sure that its connection holds nothing. Behind a
// pooler the process may be another client's by then, and must not be ended; without one it is its
// own, and is: the control. It is run with both.
func TestReleaseBehindPoolerEndsNoOther(t *testing.T) {
	t.Parallel()
	pooled := behindPooler(t)
	t.Logf("behind a pooler: %t", pooled)
	for params, ends := range map[string]bool{"strategy=advisory": false, "strategy=advisory&fence=off": !pooled} {
		name := "of " + params // the server frees that of a process which was ended a moment later
		b := openHere(t, serverURL(t, params))
		given := requestFor(name, "another")
		_, other := holding(t, b, 20*time.Second, name)
		list, err := b.List(t.Context(), name, 0)
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		pid, err := strconv.Atoi(strings.TrimPrefix(list[0].Session, "pid-"))
		if err != nil {
			t.Fatal(err)
		}
		silent := &pgxLink{pid: uint32(pid)} // that did not answer its release
		if err := b.(*bound).Confirm(limited(t), silent, given); errors.Is(err, driver.ErrGone) == ends {
			t.Errorf("%s: %v", params, err)
		}
		if err := other.Leave(limited(t)); (err != nil) != ends {
			t.Errorf("%s: the release of the other: %v", params, err)
		}
	}
}
