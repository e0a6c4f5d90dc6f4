package signals

import (
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

// KeepIgnored has Ctrl-Z stay ignored, for hasp and for the command, if the parent process ignored
// it. Go sees to HUP and INT, and does not touch the others of job control. What became of the rest
// is not known: Go takes them over before any code of ours runs, and the command has their default
// effect.
func KeepIgnored() {
	text, _ := os.ReadFile("/proc/self/status")
	_, mask, _ := strings.Cut(string(text), "\nSigIgn:")
	mask, _, _ = strings.Cut(strings.TrimSpace(mask), "\n")
	if set, err := strconv.ParseUint(mask, 16, 64); err == nil && set&(1<<(syscall.SIGTSTP-1)) != 0 {
		signal.Ignore(syscall.SIGTSTP)
	}
}
