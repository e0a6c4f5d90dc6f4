//go:build unix && !noserve && !nohttp && !noredis

package main

import (
	"bufio"
	"crypto/tls"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// reloading is a server whose files a test changes while it runs.
type reloading struct {
	t                 *testing.T
	c                 *exec.Cmd
	addr              string
	tokens, cert, key string

	mu  sync.Mutex
	log strings.Builder
}

func startReloading(t *testing.T, ca *authority) *reloading {
	t.Helper()
	s := &reloading{t: t, tokens: filepath.Join(t.TempDir(), "tokens")}
	s.cert, s.key = ca.issue("before")
	s.token("first")
	s.c = exec.Command("hasp", "serve", "--store", backends.SharedRedis(t).URL(), "--listen", "127.0.0.1:0", "--drain", "1s", "--tokens", s.tokens, "--cert", s.cert, "--key", s.key)
	stderr, err := s.c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stderr)
	first, err := lines.ReadString('\n')
	if err != nil {
		t.Fatalf("hasp serve: %q, %v", first, err)
	}
	_, s.addr, _ = strings.Cut(strings.TrimSpace(first), " at ")
	read := make(chan struct{})
	go func() {
		defer close(read)
		for {
			line, err := lines.ReadString('\n')
			s.mu.Lock()
			s.log.WriteString(line)
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = s.c.Process.Signal(syscall.SIGTERM)
		testkit.Await(t, "the end of hasp serve", read)
		if err := s.c.Wait(); err != nil {
			t.Errorf("hasp serve: %v", err)
		}
	})
	return s
}

// token adds one to the file.
func (s *reloading) token(name string) string {
	s.t.Helper()
	code, out, errOut := hasp(s.t, "", "serve", "token", "--tokens", s.tokens, name)
	if code != 0 {
		s.t.Fatalf("%d, %s", code, errOut)
	}
	return strings.TrimSpace(out)
}

func (s *reloading) write(file, text string) {
	s.t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// said waits for a word in the log that was not there at mark, and returns the next mark.
func (s *reloading) said(word string, mark int) int {
	s.t.Helper()
	testkit.Eventually(s.t, "the log to say "+word, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.Contains(s.log.String()[mark:], word)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Len()
}

// shows asks with a token, and returns the status and the name in the server's certificate.
func (s *reloading) shows(token string) (status int, name string) {
	s.t.Helper()
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	q, err := http.NewRequestWithContext(testkit.Context(s.t), http.MethodGet, s.addr+"/v1", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer "+token)
	r, err := c.Do(q)
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Body.Close()
	_, _ = io.Copy(io.Discard, r.Body)
	return r.StatusCode, r.TLS.PeerCertificates[0].Subject.CommonName
}

// Tokens and certificates are read again while the server runs, when they change and on HUP, which does
// not end it. What cannot be used changes nothing, and is said.
func TestServeReadsAgain(t *testing.T) {
	ca := newAuthority(t)
	s := startReloading(t, ca)
	second := s.token("second")
	mark := s.said("read again", 0) // by itself
	if status, name := s.shows(second); status != http.StatusOK || name != "before" {
		t.Errorf("a new token: %d; the certificate of %q", status, name)
	}
	good, err := os.ReadFile(s.tokens)
	if err != nil {
		t.Fatal(err)
	}
	s.write(s.tokens, "nonsense\n")
	_ = s.c.Process.Signal(syscall.SIGHUP)
	mark = s.said("line 1", mark)
	if status, _ := s.shows(second); status != http.StatusOK {
		t.Errorf("with a file that cannot be used: %d", status)
	}
	lines := strings.SplitAfter(string(good), "\n")
	s.write(s.tokens, lines[0])
	_ = s.c.Process.Signal(syscall.SIGHUP)
	mark = s.said("read again", mark)
	if status, _ := s.shows(second); status != http.StatusUnauthorized {
		t.Errorf("a removed token: %d", status)
	}
	newCert, newKey := ca.issue("after")
	for from, to := range map[string]string{newCert: s.cert, newKey: s.key} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		s.write(to, string(text))
	}
	_ = s.c.Process.Signal(syscall.SIGHUP)
	mark = s.said("read again", mark)
	if _, name := s.shows(second); name != "after" {
		t.Errorf("the certificate of %q", name)
	}
	s.write(s.key, "no key\n")
	_ = s.c.Process.Signal(syscall.SIGHUP)
	s.said("--cert and --key", mark)
	if _, name := s.shows(second); name != "after" {
		t.Errorf("with a key that cannot be used: the certificate of %q", name)
	}
}

// Files that others can write, or a key that others can read, are refused before anything is served.
func TestServeTrustsNoFileOfOthers(t *testing.T) {
	ca := newAuthority(t)
	for what, c := range map[string]struct {
		flag string
		mode os.FileMode
		ok   bool
	}{
		"a key that all read":           {"--key", 0o644, false},
		"a key that the group writes":   {"--key", 0o660, false},
		"a key that the group reads":    {"--key", 0o440, true},
		"a certificate that all read":   {"--cert", 0o644, true},
		"a certificate that all write":  {"--cert", 0o666, false},
		"tokens that the group writes":  {"--tokens", 0o620, false},
		"authorities that others write": {"--client-ca", 0o602, false},
		"settings the group writes":     {"--config", 0o620, false},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			cert, key := ca.issue("server")
			files := map[string]string{"--cert": cert, "--key": key, "--tokens": filepath.Join(dir, "tokens"), "--client-ca": ca.file, "--config": filepath.Join(dir, "settings")}
			if code, _, errOut := hasp(t, "", "serve", "token", "--tokens", files["--tokens"], "ci"); code != 0 {
				t.Fatal(errOut)
			}
			if err := os.WriteFile(files["--config"], []byte("log = off\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(files[c.flag], c.mode); err != nil {
				t.Fatal(err)
			}
			defer os.Chmod(ca.file, 0o600)
			args := []string{"serve", "--listen", "127.0.0.1:-1"} // with good files this is the error
			for flag, file := range files {
				args = append(args, flag, file)
			}
			code, _, errOut := hasp(t, backends.SharedRedis(t).URL(), args...)
			if refused := strings.Contains(errOut, files[c.flag]) || strings.Contains(errOut, "chmod"); code == 0 || refused == c.ok {
				t.Errorf("%d: %s", code, errOut)
			}
		})
	}
}
