//go:build !linux

package signals

// KeepIgnored: Go sees to HUP and INT. What became of others is not known here.
func KeepIgnored() {}
