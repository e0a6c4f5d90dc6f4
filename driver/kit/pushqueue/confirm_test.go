package pushqueue_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/pushqueue"
)

// Where a grant must be confirmed, one that is pushed while a request is under way is asked for, and does not count by
// itself. One that the store has forgotten is asked for once, and not again and again.
func TestGrantIsConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *store
		s = open(func(pushqueue.Mode) (answer, error) {
			s.Message("me 7")
			return waits, nil
		})
		s.Confirm = true
		k := s.ticket("me")
		v, err := k.Enqueue(t.Context())
		want(t, v, err, driver.Verdict{Retry: waits.Retry}, nil)

		lost := errors.New("no answer")
		s.enter = func(pushqueue.Mode) (answer, error) { return answer{}, lost }
		v, err = k.Wait(t.Context())
		want(t, v, err, driver.Verdict{}, lost) // the grant is not forgotten with the answer

		s.enter = says(waits)
		v, err = k.Wait(t.Context())
		want(t, v, err, driver.Verdict{Retry: waits.Retry}, nil)
		got := make(chan driver.Verdict, 1)
		go func() {
			v, _ := k.Wait(t.Context())
			got <- v
		}()
		synctest.Wait() // it waits for news
		if len(got) > 0 || len(s.asked) != 3 {
			t.Fatalf("asked %v", s.asked)
		}
		s.enter = says(answer{State: pushqueue.Held, Seq: 7})
		s.Message("me 7")
		if v := <-got; v != held || !slices.Equal(s.asked, []pushqueue.Mode{pushqueue.First, pushqueue.Ask, pushqueue.Ask, pushqueue.Ask}) {
			t.Errorf("%+v, asked %v", v, s.asked)
		}
	})
}
