package s3lock_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/caslock"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/testkit"
)

// spoiled is a server that answers each PUT with the status, if that is set: those of 500 and more
// after the write was done, the others in its place.
func spoiled(t *testing.T) (*server, *atomic.Int64) {
	status := &atomic.Int64{}
	return serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n := int(status.Load())
			if n == 0 || r.Method != http.MethodPut {
				h.ServeHTTP(w, r)
				return
			}
			if n >= 500 {
				h.ServeHTTP(httptest.NewRecorder(), r)
			}
			w.WriteHeader(n)
		})
	}), status
}

// Objects that are no records of this format are refused as locks and left as they are; a list
// has the others.
func TestForeignObjects(t *testing.T) {
	s := serve(t, nil)
	b := open(t, s.url("x"))
	session := testkit.Session(t, b, time.Minute, func(id string, err error) { t.Errorf("%s is gone: %v", id, err) })
	testkit.Held(t, session.Ticket(testkit.Request("held")))
	later := strings.Replace(string(caslock.Record{Name: "later", ID: "x", TTL: time.Minute, Nonce: "n"}.Encode()), `"hasp":1`, `"hasp":2`, 1)
	texts := map[string]string{"readme": "hello", "later": later}
	refusal := map[string]error{"readme": driver.ErrMismatch, "later": driver.ErrInvalid}
	object := func(name, method, text string) string {
		r, err := http.NewRequestWithContext(t.Context(), method, s.URL+"/locks/x/"+name, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v", name, answer.Status, err)
		}
		return string(body)
	}
	for name, text := range texts {
		object(name, http.MethodPut, text)
	}
	var names []string
	err := b.(driver.Namer).Names(t.Context(), "", func(name string) bool {
		names = append(names, name)
		return true
	})
	if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "has format 2, of a newer hasp") || !slices.Equal(names, []string{"held"}) {
		t.Errorf("listed are %q, %v", names, err)
	}
	for name, text := range texts {
		if _, err := session.Ticket(testkit.Request(name)).Enqueue(t.Context()); !errors.Is(err, refusal[name]) {
			t.Errorf("%s: %v", name, err)
		}
		if now := object(name, http.MethodGet, ""); now != text {
			t.Errorf("%s is %q now", name, now)
		}
	}
}

// What the probe keeps of a store. Another number there runs the probe anew, so each version of hasp
// trusts its own probe alone; a change needs another number.
func TestStoredProbe(t *testing.T) {
	s := serve(t, nil)
	open(t, s.url("x"))
	probe := s.URL + "/locks/x/~PROBE"
	r := testkit.Must[*http.Response](t)(http.Get(probe))
	defer r.Body.Close()
	text := string(testkit.Must[[]byte](t)(io.ReadAll(r.Body)))
	testkit.SameFormat(t, "the probe", 2, []string{regexp.MustCompile(`"probe":"[a-z0-9]+"`).ReplaceAllString(text, `"probe":"NONCE"`)}, "4d00c5bb4af80883")
	if strings.Count(text, `"passed":2`) != 1 {
		t.Fatalf("no number in %s", text)
	}
	later := strings.Replace(text, `"passed":2`, `"passed":3`, 1)
	put := testkit.Must[*http.Request](t)(http.NewRequestWithContext(t.Context(), http.MethodPut, probe, strings.NewReader(later)))
	testkit.Must[*http.Response](t)(http.DefaultClient.Do(put)).Body.Close()
	open(t, s.url("x"))
	r = testkit.Must[*http.Response](t)(http.Get(probe))
	defer r.Body.Close()
	if text := string(testkit.Must[[]byte](t)(io.ReadAll(r.Body))); !strings.Contains(text, `"passed":2`) {
		t.Errorf("the probe of another version was trusted: %s", text)
	}
}

// A write that was done and is answered by an error of the server is sent once, and found when it
// is asked for again. 404, 409 and 412 say that nothing was written.
func TestAnswers(t *testing.T) {
	for _, n := range []int{404, 409, 412, 500, 502, 503} {
		s, status := spoiled(t)
		b := open(t, s.url("x"))
		session := testkit.Session(t, b, time.Minute, func(id string, err error) { t.Errorf("%s is gone: %v", id, err) })
		ticket := session.Ticket(testkit.Request("n"))
		status.Store(int64(n))
		before := s.requests.Load()
		v, err := ticket.Enqueue(t.Context())
		status.Store(0)
		requests := s.requests.Load() - before
		if n >= 500 {
			if err == nil || requests != 2 {
				t.Errorf("%d: %+v, %v, after %d requests; want an error after a read and one write", n, v, err, requests)
			}
		} else if v.Held {
			t.Errorf("%d: %+v, %v", n, v, err)
		}
		entries, err := b.List(t.Context(), "n", 1)
		if err != nil || (len(entries) == 1) != (n >= 500) {
			t.Errorf("%d: in the store are %+v, %v", n, entries, err)
		}
		if v = testkit.Held(t, ticket); n >= 500 && v.Token != entries[0].Seq {
			t.Errorf("%d: found with token %d, the store has %d", n, v.Token, entries[0].Seq)
		}
		if err := ticket.Leave(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// What doctor says of a bucket with versions, a default retention, a rule that expires, and a store
// whose clock is elsewhere; and of one without.
func TestDoctor(t *testing.T) {
	var planted atomic.Bool
	s := serve(t, func(h http.Handler) http.Handler {
		answers := map[string]string{
			"versioning":  `<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>`,
			"object-lock": `<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention><Mode>GOVERNANCE</Mode><Days>9</Days></DefaultRetention></Rule></ObjectLockConfiguration>`,
			"lifecycle": `<LifecycleConfiguration><Rule><ID>tidy</ID><Status>Enabled</Status><Filter><Prefix>x</Prefix></Filter><Expiration><Days>1</Days></Expiration></Rule>` +
				`<Rule><ID>elsewhere</ID><Status>Enabled</Status><Filter><Prefix>logs/</Prefix></Filter><Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>`,
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !planted.Load() {
				h.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Date", time.Now().Add(-10*time.Minute).UTC().Format(http.TimeFormat))
			for what, answer := range answers {
				if r.URL.Query().Has(what) {
					w.Write([]byte(answer))
					return
				}
			}
			h.ServeHTTP(w, r)
		})
	})
	b := open(t, s.url("x"))
	defer b.Close()
	found := testkit.Findings(t, b)
	testkit.WantFinding(t, found, "conditions", driver.Info, "honoured")
	for _, subject := range []string{"versions", "object lock", "lifecycle", "clock"} {
		if f, is := found[subject]; is {
			t.Errorf("of a plain bucket: %+v", f)
		}
	}
	planted.Store(true)
	found = testkit.Findings(t, b)
	testkit.WantFinding(t, found, "versions", driver.Warn, "every version")
	testkit.WantFinding(t, found, "object lock", driver.Warn, "retention")
	testkit.WantFinding(t, found, "lifecycle", driver.Warn, `"tidy"`)
	testkit.WantFinding(t, found, "clock", driver.Warn, "10m")
	if strings.Contains(found["lifecycle"].Text, "elsewhere") {
		t.Error(found["lifecycle"].Text)
	}
}
