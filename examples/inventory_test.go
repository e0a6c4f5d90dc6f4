package examples

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
)

// Four sellers take all there is, each article once, and the tokens grow from sale to sale.
func TestInventory(t *testing.T) {
	database := "DATABASE_URL=" + backends.SharedPostgres(t).URL()
	store := newStore(t)
	inventory := func(flag string) *exec.Cmd {
		cmd := program(t, store, "inventory", flag)
		cmd.Env = append(os.Environ(), database)
		return cmd
	}
	all(t, inventory("-stock=20"))
	sellers := []*exec.Cmd{inventory("-take=5"), inventory("-take=5"), inventory("-take=5"), inventory("-take=5")}
	said := journal(t, sellers...)
	all(t, sellers...)

	// A seller says what it took after the lock may have gone to the next: so the lines are sorted,
	// by what is left.
	var tokens []string
	left := map[string]string{}
	for _, line := range said() {
		rest, token, _ := strings.Cut(strings.TrimPrefix(line, "took one, "), " left, token ")
		if left[rest] != "" {
			t.Errorf("the article after which %s were left was taken twice", rest)
		}
		left[rest] = token
	}
	for n := 19; n >= 0; n-- {
		tokens = append(tokens, left[strconv.Itoa(n)])
	}
	if slices.Contains(tokens, "") || !slices.IsSorted(tokens) { // of one length
		t.Errorf("tokens from sale to sale: %q", tokens)
	}
	if out, err := inventory("-take=1").Output(); err == nil {
		t.Errorf("taken from an empty stock: %s", out)
	}
}
