package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// scripted is a library whose answers a test knows.
type scripted struct {
	held bool
	log  strings.Builder
}

func (s *scripted) lock(name string) error {
	switch name {
	case "fails":
		return errors.New("two\nlines")
	case "loses":
		return fmt.Errorf("%w: its session", errLost)
	}
	if s.held {
		return errors.New("held already")
	}
	s.held = true
	s.log.WriteString("L")
	return nil
}

func (s *scripted) try(name string) (bool, error) {
	if name == "none" {
		return false, errNone
	}
	return name == "free", nil
}

func (s *scripted) unlock() error {
	if !s.held {
		return errLost
	}
	s.held = false
	s.log.WriteString("U")
	return nil
}

func (s *scripted) check() (bool, error) { return s.held, nil }

// Each command has its answer on one line, also where the library fails.
func TestServe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "counter")
	if err := os.WriteFile(file, []byte("40"), 0o644); err != nil {
		t.Fatal(err)
	}
	commands := []struct{ command, answer string }{
		{"lock a", `ok \d+`}, {"check", "held"}, {"unlock", `ok \d+`}, {"check", "lost"}, {"unlock", "lost lost"},
		{"try free", `ok \d+`}, {"try taken", "busy"}, {"try none", "none"},
		{"lock fails", "error: two lines"}, {"lock loses", "lost lost: its session"},
		{"", "error: no such command"}, {"lock", "error: no such command"}, {"lock a b", "error: no such command"}, {"sing", "error: no such command"},
		{"count 2 0 " + file + " a", `ok \d+`}, {"count two 0 " + file + " a", `error: .*"two".*`}, {"count 1 0 /no/such/file a", "error: .*/no/such/file.*"},
	}
	var in, out strings.Builder
	for _, c := range commands {
		in.WriteString(c.command + "\n")
	}
	l := &scripted{}
	if err := serve(l, "scripted 1", strings.NewReader(in.String()), &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 1+len(commands) || lines[0] != "ready scripted 1" {
		t.Fatalf("%d lines to %d commands:\n%s", len(lines), len(commands), out.String())
	}
	for i, c := range commands {
		if got := lines[i+1]; !regexp.MustCompile("^" + c.answer + "$").MatchString(got) {
			t.Errorf("%q: %q, want %q", c.command, got, c.answer)
		}
	}
	if text, _ := os.ReadFile(file); string(text) != "42" {
		t.Errorf("the counter is %q", text)
	}
	if got := l.log.String(); got != "LULULUL" {
		t.Errorf("taken and given back: %s", got)
	}
}

// A counter that another has just truncated reads as 0, which shows as a lost increment.
func TestIncrement(t *testing.T) {
	file := filepath.Join(t.TempDir(), "counter")
	for text, want := range map[string]string{"0": "1", "99": "100", "7\n": "8", "": "1"} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := increment(file); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(file); string(got) != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}
