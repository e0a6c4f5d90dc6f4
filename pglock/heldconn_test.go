package pglock

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A renewal may have looked up the hold before the lock is given back, and get its turn after
// that. The connection then lies idle, or serves another lock: it must not be touched.
func TestHoldOver(t *testing.T) {
	t.Parallel()
	h := &heldConn{turn: make(chan struct{}, 1), link: &pgxLink{}, timer: time.NewTimer(time.Hour)}
	ctx := t.Context()
	if err := h.use(ctx, true, func(context.Context, *pgxLink) error { return nil }); err != nil {
		t.Fatal(err)
	}
	err := h.use(ctx, false, func(context.Context, *pgxLink) error {
		t.Error("used after it was given back")
		return nil
	})
	if !errors.Is(err, errOver) {
		t.Errorf("answered %v", err)
	}
}
