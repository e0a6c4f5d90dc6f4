package settings

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/storeurl"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// prefix is that of all our variables.
const prefix = "HASP_"

// ofLock are the variables by which hasp run tells its command about the lock. HASP_STORE is not
// among them, since it is meant as a default for what the command runs.
var ofLock = []string{"HASP_NAME", "HASP_HOLDER", "HASP_TOKEN", "HASP_SLOT", "HASP_DEADLINE", "HASP_HELD"}

// isNumbered reports whether a variable is about one of the locks that -l has named, by its place
// on the command line: HASP_NAME_2. A single lock also has the ones without a number.
func isNumbered(variable string) bool {
	at := strings.LastIndexByte(variable, '_')
	_, err := strconv.Atoi(variable[at+1:])
	return err == nil && at > 0 && slices.Contains(ofLock[:3], variable[:at])
}

// OfLock are the variables by which hasp run tells its command about its locks: those that every
// lock has, and the numbered ones in environ.
func OfLock(environ []string) []string {
	names := slices.Clone(ofLock)
	for _, kv := range environ {
		if name, _, _ := strings.Cut(kv, "="); isNumbered(name) {
			names = append(names, name)
		}
	}
	return names
}

// commandLineOnly are the flags that only the command line sets.
var commandLineOnly = []string{"help", "lock", "any", "slots", "export", "background", "max-wait", "pid", "mine", "held", "once", "config", "host", "user", "older-than"}

// variableOf is the variable of a flag.
func variableOf(flag string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// settable reports whether a flag has a variable. The variables that hasp run sets for its command
// (ofLock) are not settings: a HASP_HOLDER that names the lock around this hasp must not choose the
// entry that hasp release evicts. Nor are those that change what a command line means
// (commandLineOnly).
func settable(f *pflag.Flag) bool {
	return !slices.Contains(commandLineOnly, f.Name) && !slices.Contains(ofLock, variableOf(f.Name))
}

// conflicting are the flags that a flag cannot stand beside. Those that something stronger has set
// silence it: the command line wins over the environment, and that over a file.
var conflicting = map[string][]string{
	"wait": {"no-wait", "force"}, "no-wait": {"wait"},
	"busy-code": {"skip-ok"}, "skip-ok": {"busy-code"},
	"shared": {"permits", "slots"}, "permits": {"shared", "slots"},
	"quiet": {"verbose"}, "verbose": {"quiet"},
}

// silenced returns a function that reports whether a flag is set already, or one beside which it
// cannot stand.
func silenced(fs *pflag.FlagSet) func(flag string) bool {
	given := map[string]bool{}
	fs.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	return func(flag string) bool {
		return given[flag] || slices.ContainsFunc(conflicting[flag], func(rival string) bool { return given[rival] })
	}
}

// fromEnvironment sets the flags that the command line has not. An empty variable is an absent one.
func (s *Settings) fromEnvironment(fs *pflag.FlagSet) (failed error) {
	silent := silenced(fs)
	fs.VisitAll(func(f *pflag.Flag) {
		value := s.Getenv(variableOf(f.Name))
		if failed != nil || value == "" || !settable(f) || silent(f.Name) {
			return
		}
		if err := badValue(f, value, fs.Set(f.Name, value)); err != nil {
			failed = exit.Usage("%s in the environment: %w", variableOf(f.Name), err)
		}
	})
	return failed
}

// notSettings are variables with our prefix that set nothing here: the socket of hold --export's
// holder, and those by which hasp-torture and our examples tell their scripts the server.
var notSettings = []string{"HASP_HOLD", "HASP_ADDRESS", "HASP_TTL_MS", "HASP_SERVER"}

// refuseVariables refuses a variable that begins as ours do and is none: HASP_SOTRE=redis://h would
// silently lock on this machine alone.
func (s *Settings) refuseVariables() error {
	others := slices.Concat(notSettings, OfLock(s.Environ()))
	for _, kv := range s.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, prefix) && !s.variables[name] && !slices.Contains(others, name) && !ofService(name) {
			return exit.Misconfigured("%s is not a variable of hasp%s; unset it", view.Clean(name), s.meant(name))
		}
	}
	return nil
}

// ofService reports whether a variable is one of those by which Kubernetes tells each pod of a
// service called hasp or hasp-locks: HASP_SERVICE_HOST, HASP_PORT_7070_TCP_ADDR.
func ofService(name string) bool {
	return regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`).MatchString(name)
}

// meant is the variable that cobra finds nearest to a name, as if they were commands. Of two that
// are as near the store is meant.
func (s *Settings) meant(name string) string {
	all := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, variable := range append([]string{storeurl.Variable}, slices.Sorted(maps.Keys(s.variables))...) {
		all.AddCommand(&cobra.Command{Use: variable, Run: func(*cobra.Command, []string) {}})
	}
	if near := all.SuggestionsFor(name[:min(len(name), 30)]); len(near) > 0 { // no variable is longer
		return " (did you mean " + near[0] + "?)"
	}
	return ""
}
