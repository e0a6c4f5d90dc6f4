package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/hasplock/hasp"
)

// What the documentation says beside the pairs, tried: of a client that meets our note of an
// eviction, and of tools that share no lock with us but touch our stores.
var specials = []pair{
	{store: "zookeeper", theirs: "Curator InterProcessMutex, after an eviction", program: java, library: "curator", kind: "mutex",
		server: zookeeperAddr, url: zkURL, name: "curator-evicted", special: (*match).afterEviction},
	{store: "zookeeper", theirs: "zkCli", library: "java", server: zookeeperAddr, url: zkURL, name: "orders/42", special: (*match).zkCli},
	{store: "file", theirs: "flock(1)", library: "flock", server: tempDir, url: "file://%s", name: "orders/42", special: (*match).flock},
}

// zkCli looks at our entry by the name that docs/internals/zookeeper.md gives it, and deletes
// it: we are told, and the next one gets the lock.
func (m *match) zkCli(server string) (err error) {
	if err := m.startOurs(); err != nil {
		return err
	}
	defer m.end()
	if _, err := m.lockBy(m.ours); err != nil {
		return err
	}
	const parent = "/locks/orders%2f42"
	out, err := zkCli(server, "ls", parent)
	if err != nil {
		return err
	}
	node := regexp.MustCompile(`(?m)^\[(_c_[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-lock-\d{10})\]$`).FindStringSubmatch(out)
	if node == nil {
		return fmt.Errorf("zkCli lists something else under %s:\n%s", parent, out)
	}
	began := time.Now()
	if _, err := zkCli(server, "delete", parent+"/"+node[1]); err != nil {
		return err
	}
	for {
		answer, err := m.ours.ask("check")
		if err != nil {
			return err
		}
		if strings.HasPrefix(answer, "lost") {
			break
		}
		if time.Since(began) > patience {
			return fmt.Errorf("%s after our entry was deleted we are told %q", patience, answer)
		}
		time.Sleep(time.Millisecond)
	}
	m.r.Version = "sees our entry; when it deletes that, we are told"
	if answer, err := m.ours.ask("unlock"); err != nil || !strings.HasPrefix(answer, "lost") {
		return fmt.Errorf("unlock after the loss: %q, %w", answer, err)
	}
	if _, err := m.lockBy(m.ours); err != nil {
		return fmt.Errorf("the next lock: %w", err)
	}
	m.r.Acquisitions = 2
	return nil
}

// afterEviction keeps a note of an eviction where zklock keeps it, in the data of the lock's node,
// and makes both sides contend there: only hasp may use that data. The server removes a node that
// is empty when it looks, once a minute: then all begins again.
func (m *match) afterEviction(server string) (err error) {
	for range 3 {
		err = m.contendBesideNote(server)
		m.end()
		if err == nil || !strings.Contains(err.Error(), "Node does not exist") {
			break
		}
	}
	return err
}

// contendBesideNote is one attempt of afterEviction.
func (m *match) contendBesideNote(server string) error {
	const why = "its host is gone"
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := hasp.Open(ctx, fmt.Sprintf(m.url, server))
	if err != nil {
		return err
	}
	defer c.Close()
	// A lease that a busy machine loses in between leaves nothing to evict.
	for try := 1; ; try++ {
		l, err := c.Mutex(m.name).Lock(ctx)
		if err != nil {
			return err
		}
		if err = c.Evict(ctx, m.name, l.ID(), why); err == nil {
			break
		} else if try == 3 {
			return err
		}
	}
	noted := func() error {
		out, err := zkCli(server, "get", "/locks/"+m.name)
		if err == nil && !strings.Contains(out, why) {
			err = fmt.Errorf("the lock's node does not have the note:\n%s", out)
		}
		return err
	}
	if err := noted(); err != nil {
		return err
	}
	for _, s := range steps[:4] { // those without deaths
		if err := m.patiently(s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	if err := noted(); err != nil {
		return err
	}
	m.r.Version += ", contends where the lock's node has a note of ours"
	return nil
}

// zkCli runs one command of ZooKeeper's shell, by the jars that the server is started from.
func zkCli(server string, command ...string) (string, error) {
	const jars = "/usr/share/java"
	args := append([]string{"-cp", filepath.Join(jars, "zookeeper.jar") + ":" + filepath.Join(jars, "slf4j-nop.jar"),
		"org.apache.zookeeper.ZooKeeperMain", "-server", server}, command...)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "java", args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("zkCli %v: %w\n%s", command, err, out)
	}
	return string(out), err
}

// flock shows why no lock is shared with flock(1): hasp's locks are entries in files of the
// store, whose own flocks last for microseconds; what lasts is a shared one on the directory,
// by which hasp knows that the store is in use. An exclusive one by flock(1) therefore
// waits for the end of the last client, and keeps new ones out meanwhile.
func (m *match) flock(dir string) (err error) {
	defer os.RemoveAll(dir)
	if err := m.startOurs(); err != nil {
		return err
	}
	defer m.end()
	if _, err := m.lockBy(m.ours); err != nil {
		return err
	}
	m.r.Acquisitions = 1
	exclusive := func() error { return exec.Command("flock", "--nonblock", "--exclusive", dir, "true").Run() }
	var exit *exec.ExitError
	if err := exclusive(); !errors.As(err, &exit) {
		return violation{1, fmt.Sprintf("flock(1) has the store's directory to itself while hasp uses it: %v", err)}
	}
	m.end()
	if err := exclusive(); err != nil {
		return fmt.Errorf("flock(1) of an unused store: %w", err)
	}

	holder := exec.Command("flock", "--exclusive", dir, "sh", "-c", "echo held; read _")
	in, err1 := holder.StdinPipe()
	out, err2 := holder.StdoutPipe()
	if err := errors.Join(err1, err2, holder.Start()); err != nil {
		return err
	}
	defer func() {
		_ = in.Close() // ends its read, and so it
		_ = holder.Wait()
	}()
	if _, err := out.Read(make([]byte, 16)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, _, err := newOurs(ctx, "", "file://"+dir, calm); err == nil { // it waits, for as long as it is let
		return violation{1, "hasp has opened a store whose directory flock(1) has to itself"}
	}
	m.r.Version = "no lock is shared; an exclusive one on the directory and hasp keep each other out"
	return nil
}

// startOurs starts our side alone.
func (m *match) startOurs() (err error) {
	m.ours, err = m.start("hasp", true, calm)
	return err
}
