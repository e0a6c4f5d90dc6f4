//go:build unix

package cli

import "github.com/hasplock/hasp"

// requested handles a request for the lock. Only the flag makes a holder comply, and then as at the
// end of --max-hold: the outcome depends on how the command reacts to TERM.
func (j *job) requested(by hasp.Owner) {
	p, does := &j.flags.onAsk, "stopping the command"
	switch {
	case p.ends():
		j.terminate()
	case p.says():
		does = "the command runs on"
	default:
		j.send(p.signal)
		does = "the command was sent " + signalName(p.signal)
	}
	j.report.write(record{Event: "asked", By: &by, Message: by.Asks})
	j.report.say("%s asks for %q: %s; %s", ownerText(by), j.report.name, clean(by.Asks), does)
}
