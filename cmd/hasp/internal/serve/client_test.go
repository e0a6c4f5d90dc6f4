package serve_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/memlock"
)

// A token without the right to operate gets its entries' ids from the server, and its client knows
// them by those that it has drawn.
func TestEntriesNamedByTheServer(t *testing.T) {
	known, token := tokensOf(t, [3]string{"locker", "look,lock", "*"})
	store := memlock.New()
	_, addr := start(t, serve.Options{Store: store.Backend(), Tokens: known})
	c := testkit.ClientOn(t, open(t, addr, token["locker"]))
	l := testkit.Lock(t, c, "a")
	through, err := c.Inspect(t.Context(), "a")
	if err != nil || len(through.Holders) != 1 || through.Holders[0].ID != l.ID() {
		t.Errorf("the client sees %+v, %v, and holds %s", through.Holders, err, l.ID())
	}
	beside := testkit.ClientOn(t, store.Backend())
	there, err := beside.Inspect(t.Context(), "a")
	if err != nil || len(there.Holders) != 1 || there.Holders[0].ID == l.ID() {
		t.Errorf("the store has %+v, %v", there.Holders, err)
	}
	if err := beside.Evict(t.Context(), "a", there.Holders[0].ID, "test"); err != nil {
		t.Fatal(err)
	}
	testkit.Lost(t, l, hasp.ReasonDenied)
	if _, err := c.Inspect(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}

// Two servers of one store: a client of each, and they contend.
func TestTwoServers(t *testing.T) {
	store := memlock.New()
	var clients []*hasp.Client
	for range 2 {
		_, addr := start(t, serve.Options{Store: store.Backend()})
		clients = append(clients, testkit.ClientOn(t, open(t, addr, "")))
	}
	held := testkit.Lock(t, clients[0], "a")
	next := testkit.Queued(t, clients[1], "a")
	testkit.Release(t, held)
	if l := testkit.Granted(t, next); l.Token() <= held.Token() {
		t.Errorf("token %d after %d", l.Token(), held.Token())
	}
}

// HTTP/2 is spoken without TLS as well, to clients that begin with it.
func TestHTTP2(t *testing.T) {
	_, addr := start(t, serve.Options{Store: memlock.New().Backend()})
	two := &http.Transport{Protocols: new(http.Protocols)}
	two.Protocols.SetUnencryptedHTTP2(true)
	defer two.CloseIdleConnections()
	resp, err := (&http.Client{Transport: two}).Post("http://"+addr+"/v1/session", "application/json", strings.NewReader(`{"ttl_ms":60000}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.ProtoMajor != 2 || resp.StatusCode != http.StatusCreated {
		t.Errorf("%s %s: %s, %v", resp.Proto, resp.Status, body, err)
	}
}
