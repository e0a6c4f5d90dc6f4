package driver

import "context"

type progressKey struct{}

// WithProgress is for a call that needs many answers of the store, as Names does where many names
// are remembered and few are held: answered is called for each, by any goroutine. A caller can so
// tell a store that is slow from one that is silent.
func WithProgress(ctx context.Context, answered func()) context.Context {
	return context.WithValue(ctx, progressKey{}, answered)
}

// Progress is called by drivers for each such answer.
func Progress(ctx context.Context) {
	if answered, ok := ctx.Value(progressKey{}).(func()); ok {
		answered()
	}
}
