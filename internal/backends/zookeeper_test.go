package backends

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/testtier"
)

// zkCall opens a session, makes one request by the raw protocol and returns the reply's
// payload: what a client library would do, without trusting one.
func zkCall(z *ZooKeeper, op int32, payload []byte) ([]byte, error) {
	conn, err := z.dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	connect := make([]byte, 4+8+4+8) // version, last zxid seen, timeout, session
	binary.BigEndian.PutUint32(connect[12:], 10_000)
	connect = append(zkBytes(connect, make([]byte, 16)), 0) // password, not read-only
	if _, err := zkFrame(conn, connect); err != nil {
		return nil, err
	}
	request := binary.BigEndian.AppendUint32(nil, 1) // xid
	request = binary.BigEndian.AppendUint32(request, uint32(op))
	reply, err := zkFrame(conn, append(request, payload...))
	if err != nil {
		return nil, err
	}
	if len(reply) < 16 { // xid, zxid, error
		return nil, fmt.Errorf("a reply of %d bytes", len(reply))
	}
	if code := int32(binary.BigEndian.Uint32(reply[12:])); code != 0 {
		return nil, fmt.Errorf("zookeeper error %d", code)
	}
	return reply[16:], nil
}

func zkFrame(conn net.Conn, body []byte) ([]byte, error) {
	if _, err := conn.Write(zkBytes(nil, body)); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return nil, err
	}
	reply := make([]byte, min(binary.BigEndian.Uint32(size[:]), 1<<20))
	_, err := io.ReadFull(conn, reply)
	return reply, err
}

func zkBytes(to, b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(to, uint32(len(b))), b...)
}

// zkCreate repeats a create that took a second to fail, which may have been made.
func zkCreate(z *ZooKeeper, path, data string) error {
	return patiently(func() error {
		err := zkCreateOnce(z, path, data)
		if err != nil && zkExpect(z, path, data) == nil {
			err = nil // it was created, and the answer came too late
		}
		return err
	})
}

func zkCreateOnce(z *ZooKeeper, path, data string) error {
	p := zkBytes(zkBytes(nil, []byte(path)), []byte(data))
	p = binary.BigEndian.AppendUint32(p, 1)  // one ACL:
	p = binary.BigEndian.AppendUint32(p, 31) // everything
	p = zkBytes(zkBytes(p, []byte("world")), []byte("anyone"))
	p = binary.BigEndian.AppendUint32(p, 0) // persistent
	_, err := zkCall(z, 1, p)
	return err
}

func zkExpect(z *ZooKeeper, path, want string) error {
	reply, err := zkCall(z, 4, append(zkBytes(nil, []byte(path)), 0))
	if err != nil {
		return err
	}
	if n := binary.BigEndian.Uint32(reply); string(reply[4:4+n]) != want {
		return fmt.Errorf("%s holds %q", path, reply[4:4+n])
	}
	return nil
}

func TestZooKeeperSingle(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	z := StartZooKeeper(t, ZooKeeperOptions{})
	ordeal(t, z, z.serving,
		func() error { return zkCreate(z, "/key", "value") },
		func() error { return zkExpect(z, "/key", "value") })
}

func TestZooKeeperEnsembleServesWithoutItsLeader(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	e := StartZooKeeperEnsemble(t, ZooKeeperOptions{})
	leader, err := e.Leader()
	if err != nil {
		t.Fatal(err)
	}
	if err := zkCreate(leader, "/key", "value"); err != nil {
		t.Fatal(err)
	}
	if err := leader.Kill(); err != nil {
		t.Fatal(err)
	}
	next := e.Members[0]
	if next == leader {
		next = e.Members[1]
	}
	if err := eventually(func() error { return zkExpect(next, "/key", "value") }); err != nil {
		t.Fatal(err)
	}
	if err := zkCreate(next, "/later", "value"); err != nil {
		t.Fatal(err)
	}
	if err := leader.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := eventually(func() error { return zkExpect(leader, "/later", "value") }); err != nil {
		t.Fatal(err)
	}
}

func TestZooKeeperTLS(t *testing.T) {
	testtier.Long(t)
	z := StartZooKeeper(t, ZooKeeperOptions{TLS: true, Config: []string{"tickTime=200"}})
	if err := zkCreate(z, "/key", "value"); err != nil {
		t.Fatal(err)
	}
	if err := (&ZooKeeper{Addr: z.Addr}).serving(); err == nil {
		t.Fatal("a TLS server answers in plaintext")
	}
	reply, err := z.Ask("conf")
	if err != nil || !strings.Contains(reply, "tickTime=200") {
		t.Fatalf("conf says %q (%v), want our own tickTime", reply, err)
	}
}

func TestSharedZooKeeperServes(t *testing.T) {
	e := SharedZooKeeperEnsemble(t)
	if len(e.Addrs()) != 3 {
		t.Fatalf("the members are %v, want 3", e.Addrs())
	}
	for _, z := range append([]*ZooKeeper{SharedZooKeeper(t)}, e.Members...) {
		if err := eventually(z.serving); err != nil {
			t.Error(err)
		}
	}
}
