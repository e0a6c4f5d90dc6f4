package cli

import "github.com/hasplock/hasp"

// heed makes the library watch for requests for the lock, as --on-ask says. That costs a watch on
// the name while the lock is held, so it is off by default.
//
// The library reports a request once, perhaps before the command has started. Requests beyond the
// channel's capacity are dropped: the command has already been told.
func (f *commandFlags) heed() (<-chan hasp.Owner, []hasp.LockOption) {
	if f.onAsk.ignores() {
		return nil, nil
	}
	requests := make(chan hasp.Owner, 16)
	return requests, []hasp.LockOption{hasp.Revocable(func(by hasp.Owner) {
		select {
		case requests <- by:
		default:
		}
	})}
}
