package serve_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/audit"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/memlock"
)

// audited is a server with an audit. lines ends that, and returns what was written: each line as
// event, name, token and reason.
func audited(t *testing.T, store driver.Backend) (c *api, s *serve.Server, lines func() []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "audit")
	trail, err := audit.Open(file, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c, s = with(t, serve.Options{Store: store, Audit: trail})
	return c, s, func() (all []string) {
		trail.Close()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var x audit.Line
			if err := json.Unmarshal([]byte(line), &x); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if x.Client != "everyone" || x.Entry == "" || x.Who == (hasp.Owner{}) || (x.Held != nil) != (x.Event == audit.Release || x.Event == audit.Loss) {
				t.Errorf("%s", line)
			}
			if strings.Contains(line, c.session) {
				t.Errorf("the key to a session is in it: %s", line)
			}
			all = append(all, strings.TrimSpace(fmt.Sprint(x.Event, " ", x.Name, " ", x.Token, " ", x.Reason)))
		}
		return all
	}
}

func wantLines(t *testing.T, have []string, want ...string) {
	t.Helper()
	for i := range max(len(have), len(want)) {
		if i >= len(have) || i >= len(want) || !strings.HasPrefix(have[i], want[i]) {
			t.Fatalf("the audit has\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
		}
	}
}

// Each grant has one end: a release, also one that closes the session, or a loss.
func TestAuditOfEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, lines := audited(t, memlock.New().Backend())
		c.open(time.Minute)
		c.lock("1", "released")
		c.lock("1", "released") // asked again, it is not granted again
		other := &api{t: t, s: s}
		other.open(time.Minute)
		other.lock("1", "released") // waits
		time.Sleep(3 * time.Second)
		c.want(204, "DELETE", "/v1/locks/1", nil, nil)
		c.want(204, "DELETE", "/v1/locks/1", nil, nil) // whose answer was lost
		synctest.Wait()
		c.lock("2", "left")
		other.lock("2", "left") // a place is no grant, and has no end
		other.want(204, "DELETE", "/v1/locks/2", nil, nil)
		c.want(204, "DELETE", "/v1/session", nil, nil)
		time.Sleep(2 * time.Minute) // the other is not kept alive
		got := lines()
		if len(got) == 6 && strings.HasPrefix(got[1], "grant") { // the next holder may hear of it first
			got[1], got[2] = got[2], got[1]
		}
		wantLines(t, got,
			"grant released 1", "release released 1", "grant released 2", "grant left 3", "release left 3",
			"loss released 2 ")
	})
}

// What is taken away by this server is in the audit with the reason, and then the loss of its client.
func TestAuditOfEvictions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, lines := audited(t, memlock.New().Backend())
		c.open(time.Minute)
		l := c.lock("1", "a")
		by, err := json.Marshal(hasp.Eviction{ID: l.Entry, By: hasp.Owner{User: "ana"}, Why: "web-3 is gone"})
		if err != nil {
			t.Fatal(err)
		}
		c.want(204, "POST", "/v1/evict", httpapi.EvictEntry{Name: "a", Entry: l.Entry, Note: string(by)}, nil)
		c.refused(httpapi.Gone, "POST", "/v1/evict", httpapi.EvictEntry{Name: "a", Entry: l.Entry, Note: string(by)})
		synctest.Wait()
		got := lines()
		if len(got) == 3 && strings.HasPrefix(got[1], "loss") { // the store may be the first to tell
			got[1], got[2] = got[2], got[1]
		}
		wantLines(t, got, "grant a 1", "eviction a 0 web-3 is gone", "loss a 1")
	})
}

// A lock that moves to another server is granted there, with the same token. What its client gives up
// on the way was taken away by no operator, and the audit says so.
func TestAuditOfMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		c, _, before := audited(t, store.Backend())
		other, _, after := audited(t, store.Backend())
		old := c.open(time.Minute).Session
		token := c.lock("1", "a").Token
		other.open(time.Minute)
		other.lock("1", "a")
		c.lock("2", "a") // waits behind it
		other.want(204, "POST", "/v1/evict", httpapi.EvictEntry{Name: "a", FromSession: old, FromLock: 2}, nil)
		var l httpapi.Lock
		other.want(200, "POST", "/v1/locks/2/adopt", httpapi.AdoptLock{Acquire: httpapi.Acquire{Name: "a"}, Seq: token, FromSession: old, FromLock: 1}, &l)
		other.want(204, "DELETE", "/v1/locks/1", nil, nil)
		other.want(204, "DELETE", "/v1/locks/2", nil, nil)
		c.want(204, "DELETE", "/v1/session", nil, nil)
		wantLines(t, before(), fmt.Sprint("grant a ", token), fmt.Sprint("loss a ", token, " gone from the store: handed on"))
		wantLines(t, after(), "eviction a 0 given up by its own client", fmt.Sprint("grant a ", token), fmt.Sprint("release a ", token))
		if l.Token != token {
			t.Errorf("token %d after %d", l.Token, token)
		}
	})
}

// Who took a lock away is shown to people. A token that may only lock writes nothing there, though it
// may give up its own place; and what an operator says of itself has the token's name with it.
func TestEvictionsAreNotForged(t *testing.T) {
	known, token := tokensOf(t, [3]string{"locker", "look,lock", "*"}, [3]string{"operator", "operate,look", "*"})
	c, s := with(t, serve.Options{Tokens: known})
	c.token = token["locker"]
	operator := &api{t: t, s: s, token: token["operator"]}
	last := func() (e hasp.Eviction) {
		t.Helper()
		var text httpapi.Text
		operator.want(200, "GET", "/v1/eviction?name=a", nil, &text)
		if text.Text == "" {
			return e
		}
		if err := json.Unmarshal([]byte(text.Text), &e); err != nil {
			t.Errorf("%q: %v", text.Text, err)
		}
		return e
	}
	forged := `{"id":"x","by":{"user":"root","host":"ops","via":"operator"},"why":"forged"}`
	session := c.open(time.Minute).Session
	c.lock("1", "a")
	c.want(204, "POST", "/v1/evict", httpapi.EvictEntry{Name: "a", FromSession: session, FromLock: 1, Note: forged}, nil)
	if e := last(); e != (hasp.Eviction{}) {
		t.Errorf("a client that may not operate has written %+v", e)
	}
	for note, want := range map[string]hasp.Eviction{
		`{"id":"x","by":{"user":"root","via":"other"},"why":"late"}`: {By: hasp.Owner{User: "root", Via: "operator"}, Why: "late"},
		strings.Repeat("\"é", 1300):                                  {By: hasp.Owner{User: "operator", Host: "192.0.2.1:1234", Program: "hasp serve", Via: "operator"}, Why: "cut"},
		"it hangs":                                                   {By: hasp.Owner{User: "operator", Host: "192.0.2.1:1234", Program: "hasp serve", Via: "operator"}, Why: "it hangs"},
	} {
		c.open(time.Minute)
		l := c.lock("1", "a")
		operator.want(204, "POST", "/v1/evict", httpapi.EvictEntry{Name: "a", Entry: l.Entry, Note: note}, nil)
		e := last()
		if want.Why == "cut" {
			if len(e.Why) < 1000 || !strings.HasPrefix(note, e.Why) {
				t.Errorf("of a long reason the store has %q", e.Why)
			}
			want.Why = e.Why
		}
		if want.ID = l.Entry; e.At.IsZero() {
			t.Error("without a time")
		}
		if e.At = (time.Time{}); e != want {
			t.Errorf("%s: %+v, want %+v", note, e, want)
		}
	}
}

// An eviction by the page is one by the token that has signed in.
func TestAuditOfThePage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit")
	trail, err := audit.Open(file, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	store := memlock.New()
	l := testkit.Lock(t, testkit.ClientOn(t, store.Backend()), "a")
	_, addr := start(t, serve.Options{Store: store.Backend(), Audit: trail})
	b := &tab{t: t, addr: addr, head: map[string]string{"Hasp-Page": "1"}}
	b.status(http.StatusOK, "POST", "/page/evict", fmt.Sprintf(`{"name":"a","entry":%q,"why":"too long"}`, l.ID()))
	trail.Close()
	text, err := os.ReadFile(file)
	if want := `"event":"eviction","name":"a","who":{"user":"everyone",`; err != nil || !strings.Contains(string(text), want) ||
		!strings.Contains(string(text), `"client":"everyone","entry":"`+l.ID()+`","reason":"too long"}`) {
		t.Errorf("%s, %v", text, err)
	}
}
