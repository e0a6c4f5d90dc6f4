package zklock_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/zklock"
)

// Three candidates lead in turn, in the order in which they stood, and publish who they
// are. It needs a server on this machine; TestElectionExample runs it.
func Example_election() {
	if err := takeTurns(context.Background(), os.Stdout, "zookeeper://127.0.0.1/example"); err != nil {
		fmt.Println(err)
	}
}

// candidate is one of them; in a real program each is on a separate machine.
type candidate struct {
	*hasp.Client
	name   string
	leads  chan *hasp.Term
	failed chan error
}

// stand begins to campaign and returns when its entry is in the queue.
func (c *candidate) stand(ctx context.Context) error {
	before, err := c.Inspect(ctx, "primary")
	if err != nil {
		return err
	}
	go func() {
		term, err := c.Election("primary").Campaign(ctx, []byte(c.name))
		if err != nil {
			c.failed <- err
			return
		}
		c.leads <- term
	}()
	for {
		now, err := c.Inspect(ctx, "primary")
		if err != nil || len(now.Holders)+len(now.Waiters) > len(before.Holders)+len(before.Waiters) {
			return err
		}
	}
}

func takeTurns(ctx context.Context, w io.Writer, storeURL string) error {
	var candidates []*candidate
	for _, name := range []string{"ana", "bo", "cy"} {
		c, err := hasp.Open(ctx, storeURL)
		if err != nil {
			return err
		}
		defer c.Close()
		one := &candidate{c, name, make(chan *hasp.Term, 1), make(chan error, 1)}
		if err := one.stand(ctx); err != nil {
			return err
		}
		candidates = append(candidates, one)
	}
	for turn := range 6 {
		c := candidates[turn%3]
		select {
		case term := <-c.leads:
			leader, err := c.Election("primary").Leader(ctx)
			if err != nil {
				return err
			}
			fmt.Fprintf(w, "turn %d: %s leads\n", turn+1, leader.Value)
			// Work until term.Context() ends, or until it is time to go.
			if err := term.Release(ctx); err != nil {
				return err
			}
		case err := <-c.failed:
			return err
		}
		if turn < 3 { // once more, behind the others
			if err := c.stand(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestElectionExample(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	var out strings.Builder
	if err := takeTurns(t.Context(), &out, "zookeeper://"+z.Addr+"/example-"+strings.ToLower(t.Name())+"?connect_timeout=20s"); err != nil {
		t.Fatal(err)
	}
	want := "turn 1: ana leads\nturn 2: bo leads\nturn 3: cy leads\nturn 4: ana leads\nturn 5: bo leads\nturn 6: cy leads\n"
	if out.String() != want {
		t.Errorf("%s", out.String())
	}
}

func Example_shareWithCurator() {
	// The lock of a Java service: new InterProcessMutex(client, "/member-123"). Here it is
	// the lock "member-123" under the root "/".
	b, err := zklock.New([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}, &zklock.Options{Root: "/"})
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := hasp.New(b)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	fmt.Println(c.Backend())
	// Output: zookeeper://10.0.0.1:2181,10.0.0.2:2181,10.0.0.3:2181/
}
