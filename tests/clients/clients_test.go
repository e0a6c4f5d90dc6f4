// Package clients_test tests the clients of hasp serve in other languages: against a real server, in
// front of a real Redis. Their own test programs do the work that needs one client; what needs
// several, or an odd network, is done here.
package clients_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/tests/internal/haspbin"
	"github.com/hasplock/hasp/tests/internal/haspserve"
)

// run runs a program in a directory, and fails with its output.
func run(t *testing.T, dir string, env []string, args ...string) {
	t.Helper()
	if out, err := try(t, dir, env, args...); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

func try(t *testing.T, dir string, env []string, args ...string) (out string, err error) {
	c := exec.CommandContext(t.Context(), args[0], args[1:]...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	b, err := c.CombinedOutput()
	return string(b), err
}

// write makes a file of a program.
func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// setUp copies a client to work/source, as a user has it: without what a developer has built.
func setUp(t *testing.T, client string) (work string) {
	t.Helper()
	source, err := filepath.Abs(filepath.Join("../../clients", client))
	if err != nil {
		t.Fatal(err)
	}
	work = t.TempDir()
	run(t, work, nil, "cp", "-r", source, "source")
	run(t, work, nil, "rm", "-rf", "source/node_modules", "source/build")
	return work
}

// environment has what the clients' tests use: the program and a store, with which they start
// servers, and one server that wants a certificate of its clients (the names are not those of flags).
func environment(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	ca, cert, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "server.pem"), filepath.Join(dir, "server.key")
	backends.RenewCertificates(t, ca)
	tokens := filepath.Join(dir, "tokens")
	write(t, tokens, "tests look,lock * cert:localhost\n")
	store := backends.SharedRedis(t).URL()
	s := haspserve.New(t, store, "--tokens", tokens, "--cert", cert, "--key", key, "--client-ca", ca)
	return []string{
		"HASPLOCK_BIN=" + haspbin.Build(t), "HASP_STORE=" + store,
		"TLS_URL=https://" + s.Addr, "TLS_CA=" + ca, "TLS_CERT=" + cert, "TLS_KEY=" + key,
	}
}

// mentions fails unless a program has failed and said so.
func mentions(t *testing.T, out string, err error, all ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("it has succeeded:\n%s", out)
	}
	for _, each := range all {
		if !strings.Contains(out, each) {
			t.Errorf("no word of %s:\n%s", each, out)
		}
	}
}
