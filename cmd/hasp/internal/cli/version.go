package cli

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/spf13/cobra"
)

// release is the version of a release, which the linker sets: Go knows it only of a command that
// was installed by go install.
var release string

// version is the output of `hasp version --json`.
type version struct {
	Version  string   `json:"version"`
	Revision string   `json:"revision,omitempty"`
	Modified bool     `json:"modified,omitempty"`
	Go       string   `json:"go"`
	Platform string   `json:"platform"`
	Stores   []string `json:"stores"` // URL schemes
}

func (a *app) versionCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{Use: "version [--json]", Short: "show the version, and the stores this hasp was built with"}
	c.Flags().BoolVar(&asJSON, "json", false, "as a JSON object")
	return a.verb(c, with(noWord, func(string) error { return a.printVersion(asJSON) }))
}

func (a *app) printVersion(asJSON bool) error {
	if asJSON {
		return a.printJSON(thisVersion())
	}
	return a.print("hasp version %s\n", thisVersion())
}

func (v version) String() string {
	text := v.Version
	if v.Revision != "" {
		text += " (" + v.Revision + ")"
	}
	return fmt.Sprintf("%s %s %s, stores: %v", text, v.Go, v.Platform, v.Stores)
}

func thisVersion() version {
	v := version{
		Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Stores: driver.Schemes(),
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Version = cmp.Or(release, info.Main.Version)
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

// print writes data to standard output. If the output cannot be written, the exit code must not be
// 0.
func (s *streams) print(format string, args ...any) error {
	if _, err := fmt.Fprintf(s.stdout, format, args...); err != nil {
		return notPrinted(err)
	}
	return nil
}

func notPrinted(err error) error {
	if errors.Is(err, syscall.EPIPE) {
		// The reader has enough, as in `hasp ls | head`: end silently, as if by the signal that is
		// caught (see output.SurviveClosedPipes).
		return &exit.Failure{Code: exit.CodeSignal + int(syscall.SIGPIPE), Outcome: exit.OutcomeInterrupted, Err: err, Told: true}
	}
	return &exit.Failure{Code: exit.CodeInternal, Outcome: exit.OutcomeInternal, Err: fmt.Errorf("standard output: %w", err)}
}

func (s *streams) printJSON(v any) error {
	b, err := view.JSON(v)
	if err != nil {
		return &exit.Failure{Code: exit.CodeInternal, Outcome: exit.OutcomeInternal, Err: err}
	}
	return s.print("%s\n", b)
}
