package pushqueue

import (
	"context"
	"time"
)

// Ended is ctx.Err, also in the moment before ctx's own timer fires: net's connections have the same deadline, and may be the
// first to notice it. What failed then has failed because of ctx.
func Ended(ctx context.Context) error {
	if by, bounded := ctx.Deadline(); bounded && !time.Now().Before(by) && ctx.Err() == nil {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}
