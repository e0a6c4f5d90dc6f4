package cli

import "github.com/hasplock/hasp"

// heed has the library look for those who ask for the lock, as --on-ask says. It costs a
// watch on the name while the lock is held, so it is not done unasked.
//
// The library tells of a request once, perhaps before the command has been started. More of
// them than the channel has room for are no instruction: the command is told already.
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
