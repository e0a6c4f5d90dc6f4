package cli

import "github.com/hasplock/hasp"

// wordSay is the value of --on-ask by which only people are told.
const wordSay = "say"

// asks are the requests for a lock. The library reports each once, perhaps before the command has
// started. Requests beyond the channel's capacity are dropped: the command has been told.
func asks() chan hasp.Owner { return make(chan hasp.Owner, 16) }

// heed has the library look for requests for the lock, as --on-ask says. People are told when the next
// renewal is due, which costs a read each third of the TTL and nothing for a short run. A command
// that reacts is told at once, at the price of a watch on the name.
//
// A store that does not show who waits has no requests. --on-ask stop is refused there, by the library;
// the default has nothing to say.
func (f *commandFlags) heed(c *hasp.Client, requests chan<- hasp.Owner) []hasp.LockOption {
	pass := func(by hasp.Owner) {
		select {
		case requests <- by:
		default:
		}
	}
	switch {
	case f.onAsk.ignores(), f.onAsk.says() && (!c.Traits().FIFO || f.unheard()):
		return nil
	case f.onAsk.says():
		return []hasp.LockOption{hasp.RevocableAtRenewal(pass)}
	}
	return []hasp.LockOption{hasp.Revocable(pass)}
}

// unheard reports that words about the lock reach no one.
func (f *commandFlags) unheard() bool { return f.quiet && f.statusFD == -1 }
