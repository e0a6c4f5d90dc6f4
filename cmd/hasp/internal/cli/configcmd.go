package cli

import (
	"fmt"
	"maps"
	"slices"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/exit"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/manual"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/spf13/cobra"
)

// configuration is the output of config.
type configuration struct {
	Files    []fileLine    `json:"files"` // the one that wins first
	Settings []settingLine `json:"settings"`
}

type fileLine struct {
	Path  string `json:"path"`
	State string `json:"state"` // read, absent, not readable
}

type settingLine struct {
	Key   string `json:"key"`
	Value string `json:"value"` // a URL without its credentials
	From  string `json:"from"`  // a flag, a variable, FILE:LINE, or "default"
}

func (a *app) configCommand() *cobra.Command {
	var f storeFlags
	c := &cobra.Command{
		Use:   "config [flags]",
		Short: "show the settings in force, and where they come from",
		Long: `Show the store in use, every setting that a variable or a configuration file
makes, where it stands, and which files were read. Passwords are not shown. The
store is not asked for anything.

` + manual.Config,
		Example: "  hasp config\n  HASP_WAIT=30s hasp config --json",
	}
	f.add(c.Flags(), "as a JSON object")
	return a.verb(c, with(noWord, func(string) error {
		d, err := a.inForce(&f)
		if err != nil {
			return err
		}
		if f.json {
			return a.printJSON(d)
		}
		return a.print("%s\n%s", d.table(), d.fileTable())
	}))
}

// inForce collects what all verbs would find.
func (a *app) inForce(f *storeFlags) (*configuration, error) {
	files, err := a.configFiles()
	if err != nil {
		return nil, err
	}
	d := &configuration{Files: []fileLine{}, Settings: []settingLine{{"store", f.store.shown(), a.storeFrom}}}
	for _, c := range files {
		d.Files = append(d.Files, fileLine{c.path, c.state})
	}
	for _, key := range slices.Sorted(maps.Keys(a.known)) {
		if key == "store" {
			continue
		}
		if value := a.getenv(envName(key)); value != "" {
			f := a.known[key]
			if err := badValue(f, value, f.Value.Set(value)); err != nil {
				return nil, exit.Usage("%s in the environment: %v", envName(key), err)
			}
			d.Settings = append(d.Settings, settingLine{key, view.Quietly(value), envName(key)})
			continue
		}
		if c, s := settingIn(files, key); c != nil {
			d.Settings = append(d.Settings, settingLine{key, view.Quietly(s.value), c.at(s.line)})
		}
	}
	return d, nil
}

func settingIn(files []*configFile, key string) (*configFile, setting) {
	for _, c := range files {
		for _, s := range c.settings {
			if s.key == key {
				return c, s
			}
		}
	}
	return nil, setting{}
}

// shown is the URL for people: without credentials, but with a word that there are some.
func (s *storeURL) shown() string {
	if public := s.public(); public != s.text {
		return view.Clean(public) + " (credentials not shown)"
	}
	return view.Clean(s.text)
}

func (d *configuration) table() string {
	t := view.NewTable("KEY", "VALUE", "FROM")
	for _, s := range d.Settings {
		t.Row(s.Key, s.Value, view.Clean(s.From))
	}
	return fmt.Sprint(t)
}

func (d *configuration) fileTable() string {
	t := view.NewTable("FILE", "STATE")
	for _, f := range d.Files {
		t.Row(view.Clean(f.Path), f.State)
	}
	return fmt.Sprint(t)
}
