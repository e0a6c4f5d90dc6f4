package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
)

// clientsVariable says where hasp's clients in other languages are, for those that are used from
// here.
const clientsVariable = "HASP_CLIENTS"

// compileTypeScript makes the JavaScript of that client, in its folder.
func compileTypeScript() error {
	if err := need("node", "npm"); err != nil {
		return err
	}
	return runIn(filepath.Join(os.Getenv(clientsVariable), "typescript"), "npm", "ci", "--no-audit", "--no-fund")
}

// served is hasp serve in front of the shared Redis: what the clients in other languages talk to.
var served haspServe

type haspServe struct {
	program string
	once    sync.Once
	cmd     *exec.Cmd
	addr    string
	err     error
}

func servedRedis(tb testing.TB) string {
	served.once.Do(func() { served.err = served.start("redis://" + backends.SharedRedis(tb).Addr) })
	if served.err != nil {
		tb.Fatal(served.err)
	}
	return served.addr
}

// start returns when it listens. It dies with this program.
func (s *haspServe) start(store string) error {
	s.cmd = exec.Command(s.program, "serve", "--store", store, "--listen", "127.0.0.1:0", "--log", "off")
	s.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "HASP_") }) // it refuses those of ours
	s.cmd.SysProcAttr = ownGroup()
	words, err := s.cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	last := ""
	lines := bufio.NewScanner(words)
	for lines.Scan() {
		last = lines.Text()
		if _, addr, ok := strings.Cut(last, " at http://"); ok {
			s.addr = addr
			go func() {
				for lines.Scan() { // what it says is not of interest, but must be read
				}
			}()
			return nil
		}
	}
	return fmt.Errorf("hasp serve: %v: %s", s.cmd.Wait(), last)
}

func (s *haspServe) end() {
	if s.cmd != nil && s.cmd.Process != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
}
