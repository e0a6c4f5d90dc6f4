package memstore

import (
	"context"

	"github.com/hasplock/hasp/driver"
)

// Identity is drawn when a Store is made: a name would be the same in every process, and the
// address of a Store may be another's some time.
func (b *backend) Identity(ctx context.Context) (string, error) {
	return b.store.identity, ctx.Err()
}

var _ driver.Identifier = (*backend)(nil)
