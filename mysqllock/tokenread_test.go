package mysqllock

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// What makes a token is read when the lock is held: a holder that came while the statement waited
// may have had a token of a later block. The control has the row in its FROM, where the server
// reads it first.
func TestBlockIsReadUnderLock(t *testing.T) {
	t.Parallel()
	ctx := limited(t)
	b := openHere(t, "strategy=getlock&prefix=readlate_").(*bound)
	if err := b.fit(ctx); err != nil { // makes the tables
		t.Fatal(err)
	}
	exec := func(text string) {
		t.Helper()
		if _, err := run(ctx, b.work, b.named(text)); err != nil {
			t.Fatal(err)
		}
	}
	read := func(text string) (base uint64) {
		t.Helper()
		exec("UPDATE {p}store SET server = @@server_id, base = 100, most = 200")
		holder, err := b.kept.Conn(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer holder.Close()
		waiter, err := b.kept.Conn(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer waiter.Close()
		if err := row(ctx, holder, "SELECT GET_LOCK('readlate', 0)", new(int)); err != nil {
			t.Fatal(err)
		}
		if _, err := run(ctx, waiter, b.named("SET @{p}seen = 1")); err != nil {
			t.Fatal(err)
		}
		answer := make(chan string, 1)
		go func() {
			var said string
			if err := row(ctx, waiter, b.named(text), &said); err != nil {
				t.Error(err)
			}
			answer <- said
		}()
		eventually(t, "it waits for the lock", func() bool {
			n := 0
			err := row(ctx, b.work, "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock' AND info LIKE '%''readlate''%'", &n)
			return err == nil && n == 1
		})
		exec("UPDATE {p}store SET base = 300, most = 400")
		if err := row(ctx, holder, "SELECT RELEASE_LOCK('readlate')", new(int)); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(<-answer, new(string), new(string), &base); err != nil {
			t.Fatal(err)
		}
		if err := row(ctx, waiter, "SELECT RELEASE_LOCK('readlate')", new(int)); err != nil {
			t.Fatal(err)
		}
		return base
	}
	if base := read("SELECT ELT(GET_LOCK('readlate', 60) + 1, '0', " + makesToken + ")"); base != 300 {
		t.Errorf("the block that was read begins at %d, and 300 was committed while it waited", base)
	}
	if base := read("SELECT ELT(GET_LOCK('readlate', 60) + 1, '0', CONCAT_WS(' ', 0, 0, base)) FROM {p}store WHERE one = 1"); base != 100 {
		t.Errorf("the control has read %d: this has tested nothing", base)
	}
}

// A request that was interrupted, to which GET_LOCK says NULL, is an error, and not a lock that is
// taken, or free.
func TestInterruptedRequest(t *testing.T) {
	t.Parallel()
	ctx := limited(t)
	b := openHere(t, "strategy=getlock&prefix=request_").(*bound)
	if err := b.fit(ctx); err != nil { // makes the tables
		t.Fatal(err)
	}
	const none = expression("NULL") // to this name, too, the answer is NULL
	for _, text := range []string{
		statement(bareRequest, none, 0), b.named(tryingRequest, none), b.named(waitingRequest, none, 0),
	} {
		c, err := b.Take(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Drop(c)
		if g, err := b.request(ctx, c, request("interrupted"), text, 0, nil); !errors.Is(err, errInterrupted) || g.Held {
			t.Errorf("%s: %+v, %v", text, g, err)
		}
	}
}

// A token is told only where all is right: the block is of this server, begun in the connection's
// time, not used up, not far behind the clock; and the server can be written to.
func TestTokenOf(t *testing.T) {
	t.Parallel()
	const right = "1007 1000 1764000000000000 1764000000000100 5 1 1 0 1764000010"
	if token := tokenOf(right); token != 1764000000000007 {
		t.Errorf("%s: %d", right, token)
	}
	for what, edit := range map[string][2]string{
		"used up": {"1007", "1101"}, "another run, later": {"1007", "999"}, "seen before": {" 5 ", " 1764000000000000 "},
		"never seen": {" 5 ", " "}, "another server": {" 1 1 ", " 2 1 "}, "read-only": {" 1 0 ", " 1 ON "},
		"behind": {"1764000010", "1764000011"}, "nothing": {right, ""},
	} {
		if said := strings.Replace(right, edit[0], edit[1], 1); said == right || tokenOf(said) != 0 {
			t.Errorf("%s: %q makes %d", what, said, tokenOf(said))
		}
	}
}
