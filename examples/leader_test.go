package examples

import (
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
)

// The leader answers, and the others redirect to it. When it dies another leads, until none is left.
func TestLeader(t *testing.T) {
	store := newStore(t)
	type server struct {
		*exec.Cmd
		address string
		says    func(word string) string
	}
	var servers []server
	for range 3 {
		cmd := program(t, store, "leader")
		says := output(t, cmd)
		start(t, cmd)
		servers = append(servers, server{cmd, says("serving"), says})
	}
	token := ""
	for len(servers) > 0 {
		// Who follows a leader is told of a change in the end, and may be told of the old one before.
		leader := -1
		for leader < 0 {
			now := servers[0].says("following")
			for i, s := range servers {
				if s.address == now {
					leader = i
				}
			}
		}
		address := servers[leader].address
		for i, s := range servers {
			for i > 0 && s.says("following") != address {
			}
		}
		said := ""
		for _, s := range servers {
			answer := get(t, s.address)
			if !strings.HasPrefix(answer, address+" leads") {
				t.Fatalf("%s answers %q, and %s leads", s.address, answer, address)
			}
			if said != "" && answer != said {
				t.Errorf("%q and %q in one term", said, answer)
			}
			said = answer
		}
		if said == token {
			t.Errorf("two terms: %q", said)
		}
		token = said
		if err := servers[leader].Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = servers[leader].Wait() // "killed" is no news
		servers = append(servers[:leader:leader], servers[leader+1:]...)
	}
}

// get asks a server, and whom it redirects to. The store's word of a new leader may reach the others
// before it reaches the leader, which then says that there is none.
func get(t *testing.T, url string) string {
	t.Helper()
	for {
		answer, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		switch {
		case err != nil:
			t.Fatal(err)
		case answer.StatusCode == http.StatusOK:
			return strings.TrimSpace(string(text))
		case answer.StatusCode != http.StatusServiceUnavailable:
			t.Fatalf("%s: %s", url, answer.Status)
		}
	}
}
