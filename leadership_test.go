package hasp_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/memlock"
)

// The demo of docker/leadership, as docs/MIGRATING.md has it here: three candidates; each leads for
// ten seconds when its turn comes, resigns, and stands again. A follower is told of each leader.
// When one is stopped the others take turns, and no two lead at once.
func TestLeadershipDemo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memlock.New().Backend()
		var turns []string
		leading := ""
		stop := map[string]context.CancelFunc{}
		for _, name := range []string{"a", "b", "c"} {
			ctx, cancel := context.WithCancel(t.Context())
			stop[name] = cancel
			election := client(t, b).Election("service/swarm/leader")
			go election.Run(ctx, []byte(name), func(ctx context.Context, term *hasp.Term) error {
				if leading != "" {
					t.Errorf("%s leads beside %s", name, leading)
				}
				leading, turns = name, append(turns, fmt.Sprint(name, " ", term.Token()))
				select {
				case <-ctx.Done():
				case <-time.After(10 * time.Second):
				}
				leading = ""
				return nil
			})
			synctest.Wait() // so that they stand in this order
		}
		var followed []string
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for leader, err := range client(t, b).Election("service/swarm/leader").Observe(ctx) {
				if err == nil && leader.ID != "" {
					followed = append(followed, fmt.Sprint(string(leader.Value), " ", leader.Token))
				}
			}
		}()
		time.Sleep(55 * time.Second) // in the middle of the sixth turn
		synctest.Wait()
		if want := []string{"a 1", "b 2", "c 3", "a 4", "b 5", "c 6"}; !slices.Equal(turns, want) {
			t.Errorf("turns: %q", turns)
		}
		stop["c"]()
		time.Sleep(25 * time.Second)
		synctest.Wait()
		if rest := turns[min(6, len(turns)):]; !slices.Equal(rest, []string{"a 7", "b 8", "a 9"}) {
			t.Errorf("after c was stopped: %q", rest)
		}
		cancel()
		<-ended
		if !slices.Equal(followed, turns) {
			t.Errorf("leaders: %q; followed: %q", turns, followed)
		}
		stop["a"]()
		stop["b"]()
		synctest.Wait()
	})
}
