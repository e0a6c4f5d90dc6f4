package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
)

// readersWaitBehind shows the fault of kazoo's ReadLock before 2.9.0, in place of the steps, in
// which it stops both sides for good: a reader waits for the last writer in the queue even if that
// stands behind it, and the writer waits for the reader (kazoo's issue 649). It is kazoo's own
// fault: at first two of its WriteLocks stand in for hasp's writers.
//
// hasp cannot repair it. No node distinguishes an old reader that waits from one that holds, or
// from a new one; a writer that stepped back for it would lose its place beside every reader.
func (m *match) readersWaitBehind(server string) error {
	conn, events, err := zk.Connect([]string{server}, calm, zk.WithLogger(log.New(io.Discard, "", 0)))
	if err != nil {
		return err
	}
	defer conn.Close()
	go func() { // the library drops events that are not taken
		for range events {
		}
	}()
	for _, ours := range []bool{false, true} {
		name := m.name + "-alone"
		if ours {
			name = m.name + "-beside"
		}
		if err := m.waitsBehind(conn, server, name, ours); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	m.r.Version += ", whose readers wait for writers behind them, its own writers too: not to be used"
	return nil
}

// waitsBehind queues a writer, a reader and a writer. When the first lets go, it is the
// reader's turn; but the reader gets the lock only when the second has left the queue.
func (m *match) waitsBehind(conn *zk.Conn, server, name string, ours bool) error {
	begin := func(label, kind string, ours bool) (*process, error) {
		m.kind = kind
		return m.start(label, ours, calm)
	}
	first, err1 := begin("the first writer", "WriteLock", ours)
	reader, err2 := begin("the reader", "ReadLock", false)
	second, err3 := begin("the second writer", "WriteLock", ours)
	for _, p := range []*process{first, reader, second} {
		if p != nil {
			defer p.kill()
		}
	}
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	m.r.Version = reader.version
	path := "/locks/" + name
	for i, p := range []*process{first, reader, second} {
		if err := p.send("lock", name); err != nil {
			return err
		}
		if _, err := queue(conn, path, i+1); err != nil {
			return err
		}
	}
	if _, err := first.awaitTime(patience); err != nil {
		return err
	}
	if _, err := first.do("unlock"); err != nil {
		return err
	}
	nodes, err := queue(conn, path, 2)
	if err != nil {
		return err
	}
	if err := watched(conn, server, reader, path+"/"+nodes[0], path+"/"+nodes[1]); err != nil {
		return err
	}
	if err := conn.Delete(path+"/"+nodes[1], -1); err != nil {
		return err
	}
	if _, err := reader.awaitTime(patience); err != nil {
		return fmt.Errorf("the reader without the writer behind it: %w", err)
	}
	m.r.Acquisitions += 2
	return nil
}

// queue waits until a lock has n entries, and returns them in the order of their numbers.
func queue(conn *zk.Conn, path string, n int) ([]string, error) {
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		nodes, _, err := conn.Children(path)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return nil, err
		}
		if len(nodes) == n {
			slices.SortFunc(nodes, func(a, b string) int { return strings.Compare(a[len(a)-10:], b[len(b)-10:]) })
			return nodes, nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("the queue has %q, and not %d entries", nodes, n)
		}
	}
}

// watched waits until the reader, whose entry is the first of the queue, watches the entry
// behind it. It fails if the reader has the lock instead.
func watched(conn *zk.Conn, server string, reader *process, entry, behind string) error {
	_, stat, err := conn.Exists(entry)
	if err != nil {
		return err
	}
	session := fmt.Sprintf("\t0x%x", stat.EphemeralOwner)
	for end := time.Now().Add(patience); ; {
		if line, err := reader.await(10 * time.Millisecond); !errors.Is(err, errNoAnswer) {
			return errors.Join(fmt.Errorf("the reader answers %q: %s is without this fault, and is to play the steps", line, reader.version), err)
		}
		watches, err := watchesOf(server)
		if err != nil {
			return err
		}
		if slices.Contains(watches[behind], session) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the reader has not the lock, and watches something else than %s: %q", behind, watches)
		}
	}
}

// watchesOf asks ZooKeeper for its watches: lines of the sessions behind each path.
func watchesOf(server string) (map[string][]string, error) {
	conn, err := net.DialTimeout("tcp", server, patience)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if _, err := io.WriteString(conn, "wchp"); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(conn)
	if err != nil {
		return nil, err
	}
	watches, path := map[string][]string{}, ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "/") {
			path = line
		} else {
			watches[path] = append(watches[path], line)
		}
	}
	return watches, nil
}
