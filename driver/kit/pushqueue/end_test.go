package pushqueue_test

import (
	"errors"
	"testing"
)

// A ticket whose Leave had no answer is among those that may have an entry when the session ends; one whose Leave was
// answered is not.
func TestEndHasLeaving(t *testing.T) {
	s := open(says(waits))
	unanswered, left := s.ticket("unanswered"), s.ticket("left")
	for _, k := range []*ticket{unanswered, left} {
		if _, err := k.Enqueue(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := left.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	lost := errors.New("no answer")
	s.leave = func(*ticket, bool) error { return lost }
	if err := unanswered.Leave(t.Context()); err != lost {
		t.Fatal(err)
	}
	if last := s.End(); len(last) != 1 || last[0] != unanswered {
		t.Errorf("%d tickets at the end", len(last))
	}
}
