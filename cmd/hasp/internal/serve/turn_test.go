package serve

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

type taken struct {
	*use
	err error
}

func (t *turn) taking(ctx context.Context) <-chan taken {
	came := make(chan taken, 1)
	go func() {
		u, err := t.take(ctx, context.Background())
		came <- taken{u, err}
	}()
	return came
}

// A request that waits for the turn is ended by the next one, which gets the turn when it is free.
func TestTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turn := newTurn()
		first := <-turn.taking(t.Context())
		second := turn.taking(t.Context())
		synctest.Wait()
		if !errors.Is(context.Cause(first.ctx), errOvertaken) {
			t.Error("the first is not ended")
		}
		third := turn.taking(t.Context())
		if s := <-second; !errors.Is(s.err, errOvertaken) {
			t.Errorf("the second: %v", s.err)
		}
		synctest.Wait()
		select {
		case <-third:
			t.Fatal("two have the turn")
		default:
		}
		first.release()
		u := <-third
		if u.err != nil || u.ctx.Err() != nil {
			t.Fatal(u.err, u.ctx.Err())
		}
		u.release()
	})
}

// A client goes away at the moment at which its request would get the turn: the turn is not lost,
// and is not given twice.
func TestTurnGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turn := newTurn()
		for i := range 200 {
			first := <-turn.taking(t.Context())
			ctx, leave := context.WithCancel(t.Context())
			second := turn.taking(ctx)
			synctest.Wait()
			if i%2 == 0 {
				first.release()
				leave()
			} else {
				leave()
				first.release()
			}
			if s := <-second; s.err == nil {
				s.release()
			}
			if len(turn.taken) != 0 || turn.last != nil {
				t.Fatalf("%+v", turn)
			}
		}
	})
}
