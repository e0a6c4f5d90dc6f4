package serve_test

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/internal/httpapi"
	"github.com/hasplock/hasp/memlock"
)

// lines are the tokens of a file with these lines: name, rights and prefix.
func linesOf(t *testing.T, all ...[3]string) *access.Tokens {
	t.Helper()
	text := ""
	for _, x := range all {
		hash := access.HashOf("the token of " + x[0])
		text += fmt.Sprintln(x[0], x[1], x[2], "sha256:"+hex.EncodeToString(hash[:]))
	}
	known, err := access.Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return known
}

// The prefix of a token is reduced while it holds two locks and waits for two, of which it may have
// one each from then on. The held one is told as lost by the next keep-alive, and is not free before
// its client's time is over. The one that waits is not granted, and the next in the queue is.
func TestReducedToken(t *testing.T) {
	beside := [3]string{"beside", "look,lock", "*"}
	before, after := linesOf(t, [3]string{"reduced", "look,lock", "*"}, beside), linesOf(t, [3]string{"reduced", "look,lock", "app/"}, beside)
	synctest.Test(t, func(t *testing.T) {
		c, s := with(t, serve.Options{Store: memlock.New().Backend(), Tokens: before})
		c.token = "the token of reduced"
		other := &api{t: t, s: s, token: "the token of beside"}
		other.open(time.Minute)
		began := time.Now()
		c.open(10 * time.Second)
		for number, name := range map[string]string{"1": "app/held", "2": "held"} {
			if l := c.lock(number, name); l.State != httpapi.Held {
				t.Fatalf("%+v", l)
			}
		}
		for number, name := range map[string]string{"3": "app/waits", "4": "waits"} {
			other.lock(number, name)
			c.lock(number, name)
		}
		other.lock("5", "held") // behind
		other.lock("6", "waits")
		time.Sleep(3 * time.Second)
		s.SetTokens(after)
		c.refused(httpapi.Forbidden, "PUT", "/v1/locks/2/value", httpapi.Value{Value: []byte("x")})

		for _, number := range []string{"3", "4"} {
			other.want(204, "DELETE", "/v1/locks/"+number, nil, nil)
		}
		synctest.Wait()
		if x := c.changed(3); x.State != httpapi.Held {
			t.Errorf("what it may have: %+v", x)
		}
		if x := other.changed(6); x.State != httpapi.Held {
			t.Errorf("the next behind what it may not have: %+v", x)
		}
		lost := func(want ...uint64) {
			t.Helper()
			var alive httpapi.Alive
			c.want(200, "POST", "/v1/session/keepalive", nil, &alive)
			told := map[uint64]bool{}
			for _, l := range alive.Lost {
				told[l.Lock] = true
			}
			for _, number := range want {
				if !told[number] {
					t.Errorf("lock %d is not told as lost: %+v", number, alive)
				}
			}
			if len(told) != len(want) {
				t.Errorf("told %+v, want %v", alive, want)
			}
		}
		lost(2, 4)
		c.refused(httpapi.Forbidden, "PUT", "/v1/locks/2", httpapi.Acquire{Name: "held"})
		for time.Since(began) < 9*time.Second {
			time.Sleep(2 * time.Second)
			lost(2, 4)
			if l := other.lock("5", "held"); l.State != httpapi.Waiting {
				t.Fatalf("%s after its client was last told that it has it, the lock is another's: %+v", time.Since(began), l)
			}
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if x := other.changed(5); x.State != httpapi.Held {
			t.Errorf("when its client's time is over: %+v", x)
		}
		if l := c.lock("1", "app/held"); l.State != httpapi.Held {
			t.Errorf("what it may have: %+v", l)
		}
	})
}

// A line that is missing for a moment, as while an editor writes the file, costs no lock.
func TestTokenMissingForAMoment(t *testing.T) {
	before, without := linesOf(t, [3]string{"a", "lock", "*"}), linesOf(t, [3]string{"b", "lock", "*"})
	synctest.Test(t, func(t *testing.T) {
		c, s := with(t, serve.Options{Tokens: before})
		c.token = "the token of a"
		c.open(10 * time.Second)
		c.lock("1", "a")
		s.SetTokens(without)
		c.refused(httpapi.NoToken, "POST", "/v1/session/keepalive", nil)
		time.Sleep(5 * time.Second)
		s.SetTokens(before)
		var alive httpapi.Alive
		c.want(200, "POST", "/v1/session/keepalive", nil, &alive)
		if l := c.lock("1", "a"); len(alive.Lost) > 0 || l.State != httpapi.Held {
			t.Errorf("%+v, %+v", alive, l)
		}
	})
}
