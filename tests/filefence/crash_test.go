//go:build unix

package filefence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/filefence"
)

// crashEnv has a second process of this binary replace the file that it names, with one token
// after the other, until it is killed. A path that begins with "!" is written to in place: the
// control.
const crashEnv = "HASP_FILEGUARD_CRASH"

// version is the content of the file under a token: large enough that writing it takes a while, and
// the same number on every line.
func version(token uint64) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "%020d\n", token), 20_000)
}

// replaceUntilKilled continues after the token in the file.
func replaceUntilKilled(path string) error {
	inPlace := path[0] == '!'
	if inPlace {
		path = path[1:]
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	last, err := strconv.ParseUint(string(content[:20]), 10, 64)
	if err != nil {
		return err
	}
	fmt.Println("begun")
	for token := last + 1; ; token++ {
		if inPlace {
			err = os.WriteFile(path, version(token), 0o600)
		} else {
			err = replaceUnder(path, token)
		}
		if err != nil && !errors.Is(err, fencing.ErrStale) { // the one before may have died behind its fence
			return err
		}
	}
}

func replaceUnder(path string, token uint64) error {
	w, err := filefence.With(context.Background(), path, fencing.GrantOf("crash", token), nil)
	if err != nil {
		return err
	}
	return w.Replace(context.Background(), bytes.NewReader(version(token)))
}

// Whenever the writer is killed, the file is whole, and its fence is not behind it: an older
// holder could otherwise write over it.
func TestKilledWhileReplacing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, version(1), 0o600); err != nil {
		t.Fatal(err)
	}
	// Until enough of the killed have replaced the file before; after one that has not they
	// get more time, since syncing takes what it takes.
	var last uint64
	within := 20 * time.Millisecond
	for kills, replaced := 0, 0; replaced < 15; kills++ {
		if kills == 200 {
			t.Fatalf("%d writers were killed, and only %d had replaced the file", kills, replaced)
		}
		killSoon(t, path, within)
		token, whole := inspect(t, path)
		if !whole {
			t.Fatal("the file is torn")
		}
		if token < last {
			t.Fatalf("the file went back from token %d to %d", last, token)
		}
		if token == last {
			within = min(within+within/4, 2*time.Second)
			continue // killed before its first was done
		}
		last = token
		replaced++
		if token == 1 {
			continue
		}
		var stale *fencing.StaleError
		if _, err := filefence.With(t.Context(), path, fencing.GrantOf("crash", token-1), nil); !errors.As(err, &stale) || stale.Seen < token || stale.Seen > token+1 {
			t.Fatalf("the file is of token %d, and an older one is told: %v", token, err)
		}
	}
}

// The control: a file that is written in place is found torn sooner or later.
func TestKilledWhileWritingInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for range 200 {
		if err := os.WriteFile(path, version(1), 0o600); err != nil {
			t.Fatal(err)
		}
		killSoon(t, "!"+path, 20*time.Millisecond)
		if _, whole := inspect(t, path); !whole {
			return
		}
	}
	t.Error("never torn: the other test would not notice")
}

// killSoon runs a writer and kills it at some moment, within the time after it has begun.
func killSoon(t *testing.T, target string, within time.Duration) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^$")
	cmd.Env = append(os.Environ(), crashEnv+"="+target)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Errorf("the writer did not begin: %v", err)
	}
	time.Sleep(rand.N(within))
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // "signal: killed" is expected
}

// inspect returns the token that the file is of, and whether all of it is.
func inspect(t *testing.T, path string) (token uint64, whole bool) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(content) < 20 {
		return 0, false
	}
	token, err = strconv.ParseUint(string(content[:20]), 10, 64)
	return token, err == nil && bytes.Equal(content, version(token))
}
