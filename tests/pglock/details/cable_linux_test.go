package pglock_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// L1: a holder's cable is cut while an answer of the server to it is under way. As long as that is
// not acknowledged the server's kernel sends no probes, but the answer again and again: the
// lock would stay with the dead machine for a quarter of an hour. The machine is a network
// namespace with a separate cable.
func TestCableCut(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	far := newMachine(t)
	server := private(t, "listen_addresses = '*'")
	sqlkit.Postgres(t, server.URL(), "COPY (SELECT 'host all all "+far.own+"/32 trust') TO PROGRAM 'cat >> pg_hba.conf'; SELECT pg_reload_conf()")
	_, port, err := net.SplitHostPort(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	params := sqlkit.With(server.URL(), "strategy=advisory")
	far.holds(t, replaceHost(t, params, far.server), "advisory")
	testkit.Entries(t, client(t, params), "advisory") // waits until it is recorded
	pid := ask[int](t, server.URL(), "SELECT pid FROM hasp_holders WHERE name = $1", "advisory")
	next := queued(t, params, "advisory")
	client := ask[int](t, server.URL(), "SELECT client_port FROM pg_stat_activity WHERE pid = $1", pid)
	// The server's process stands still until a renewal has come, and answers into the void.
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	goOn := func() { _ = syscall.Kill(pid, syscall.SIGCONT) }
	t.Cleanup(goOn)
	testkit.Eventually(t, "a renewal that is not read", func() bool { _, unread := queues(t, port, far.own, client); return unread > 0 })
	far.link(t, "down")
	goOn()
	testkit.Eventually(t, "an answer that is not acknowledged", func() bool { unacknowledged, _ := queues(t, port, far.own, client); return unacknowledged > 0 })
	testkit.Release(t, testkit.Granted(t, next))
	far.link(t, "up")
}

// One of a client's connections falls silent, here since its process of the server is stopped. Its
// lock is lost when its time is over, and the others go on. (All were lost, since a renewal waited
// for the answers of all.)
func TestSilentConnection(t *testing.T) {
	t.Parallel()
	server := private(t)
	t.Run("advisory", func(t *testing.T) {
		t.Parallel()
		c := client(t, sqlkit.With(server.URL(), "strategy=advisory"))
		silent, other := testkit.Lock(t, c, "advisory"), testkit.Lock(t, c, "advisory of another connection")
		listed(t, c, silent)
		pid := ask[int](t, server.URL(), "SELECT pid FROM hasp_holders WHERE name = $1", "advisory")
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		goOn := func() { _ = syscall.Kill(pid, syscall.SIGCONT) }
		t.Cleanup(goOn)
		testkit.Lost(t, silent, hasp.ReasonExpired, hasp.ReasonDenied)
		lasts(t, other, 12*time.Second) // pglock trusts a connection for no longer without an answer
		late := testkit.Lock(t, c, "advisory, late")
		goOn()
		testkit.Release(t, other)
		testkit.Release(t, late)
	})
}

// machine is a network namespace and the cable to it.
type machine struct{ name, cable, server, own string }

func newMachine(t *testing.T) *machine {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a network namespace needs root")
	}
	if err := backends.InstallProgram(os.Stderr, "ip", "iproute2"); err != nil {
		t.Skip(err)
	}
	id := make([]byte, 4)
	rand.Read(id)
	// 198.18.0.0/15 is for tests of networks.
	subnet := fmt.Sprintf("198.%d.%d.", 18+id[0]%2, id[1])
	m := &machine{name: "hasp-" + hex.EncodeToString(id), cable: "h" + hex.EncodeToString(id), server: subnet + "1", own: subnet + "2"}
	if out, err := exec.Command("ip", "netns", "add", m.name).CombinedOutput(); err != nil {
		t.Skipf("no network namespaces here: %s", out)
	}
	t.Cleanup(func() { m.ip(t, "netns", "del", m.name) })
	m.ip(t, "link", "add", m.cable+"a", "type", "veth", "peer", "name", m.cable+"b", "netns", m.name)
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", m.cable+"a").Run() }) // or it goes with the namespace
	m.ip(t, "addr", "add", m.server+"/24", "dev", m.cable+"a")
	m.ip(t, "link", "set", m.cable+"a", "up")
	m.ip(t, "-n", m.name, "addr", "add", m.own+"/24", "dev", m.cable+"b")
	m.link(t, "up")
	return m
}

func (m *machine) ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %q: %s", args, out)
	}
}

func (m *machine) link(t *testing.T, state string) {
	t.Helper()
	m.ip(t, "-n", m.name, "link", "set", m.cable+"b", state)
}

// holds has a process of that machine take a lock and keep it.
func (m *machine) holds(t *testing.T, storeURL, name string) {
	t.Helper()
	cmd := exec.Command("ip", "netns", "exec", m.name, os.Args[0], "-test.run=^TestHolderOfCable$")
	cmd.Env = append(os.Environ(), "HASP_TEST_CABLE="+storeURL, "HASP_TEST_NAME="+name)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		t.Fatalf("the other machine says %q, %v", line, err)
	}
}

// TestHolderOfCable is that process.
func TestHolderOfCable(t *testing.T) {
	storeURL := os.Getenv("HASP_TEST_CABLE")
	if storeURL == "" {
		t.Skip("a part of TestCableCut")
	}
	c, err := hasp.Open(context.Background(), storeURL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Mutex(os.Getenv("HASP_TEST_NAME")).Lock(context.Background()); err != nil {
		t.Fatal(err)
	}
	fmt.Println("held")
	_, _ = os.Stdin.Read(make([]byte, 1)) // until it is killed
}

// queues are what the kernel has of a connection of the server's: bytes that were sent and not
// acknowledged, and bytes that came and were not read.
func queues(t *testing.T, serverPort, client string, clientPort int) (unacknowledged, unread int64) {
	t.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	ip := net.ParseIP(client).To4()
	port, err := strconv.Atoi(serverPort)
	if err != nil {
		t.Fatal(err)
	}
	remote := fmt.Sprintf("%02X%02X%02X%02X:%04X", ip[3], ip[2], ip[1], ip[0], clientPort)
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) > 4 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) && f[2] == remote {
			tx, rx, _ := strings.Cut(f[4], ":")
			unacknowledged, _ = strconv.ParseInt(tx, 16, 64)
			unread, _ = strconv.ParseInt(rx, 16, 64)
		}
	}
	return unacknowledged, unread
}
