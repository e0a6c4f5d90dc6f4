//go:build unix

package cli

import "github.com/hasplock/hasp"

// requested is for somebody who asks for the lock. Nobody is made to comply but by the flag,
// and then as at the end of --max-hold: the outcome is what the command makes of its TERM.
func (j *job) requested(by hasp.Owner) {
	j.report.write(record{Event: "asked", By: &by, Message: by.Asks})
	who := ownerText(by)
	if p := &j.flags.onAsk; p.ends() {
		j.report.say("%s asks for %q: %s; stopping the command", who, j.report.name, clean(by.Asks))
		j.terminate()
	} else {
		j.report.say("%s asks for %q: %s; the command was sent %s", who, j.report.name, clean(by.Asks), signalName(p.signal))
		j.send(p.signal)
	}
}
