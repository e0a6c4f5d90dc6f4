package cli

import (
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/exit"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/driver"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usualPorts are those by which an address without a scheme tells its store.
var usualPorts = map[uint64]string{
	6379: "redis", 6380: "rediss", 2379: "etcd", 2181: "zookeeper", 5432: "postgres", 3306: "mysql",
}

// optionalSchemes are those that a build may leave out, by tags.
var optionalSchemes = []string{
	"etcd", "hasp+http", "hasp+https", "kube", "mariadb", "mysql", "postgres", "postgresql", "redis", "rediss", "redlock", "redlocks",
	"s3", "valkey", "valkeys", "zookeeper",
}

// checkScheme refuses a store that no driver of this program can open, and guesses what was meant.
// The library's own error asks whether the driver's package is imported, which is a question for
// programmers. Nothing of the text is shown that could be a secret.
func (s *storeURL) checkScheme() error {
	schemes := driver.Schemes()
	scheme, _, found := strings.Cut(s.text, ":")
	if found && slices.Contains(schemes, scheme) {
		return nil
	}
	guess := ""
	if found && slices.Contains(optionalSchemes, scheme) {
		guess = "; this hasp was built without " + scheme + "://"
	} else if meant := meantURL(s.text, schemes); meant != "" {
		guess = "; did you mean " + meant + "?"
	}
	return exit.Misconfigured("the store must be a URL that begins with one of %s://%s", strings.Join(schemes, ":// "), guess)
}

// meantURL returns "" if there is nothing to guess.
func meantURL(text string, schemes []string) string {
	if scheme, _, found := strings.Cut(text, "://"); found {
		return similar(scheme, schemes)
	}
	if filepath.IsAbs(text) || strings.HasPrefix(text, ".") {
		abs, err := filepath.Abs(text)
		if err != nil || strings.ContainsAny(text, "?@") {
			return ""
		}
		return (&url.URL{Scheme: "file", Path: filepath.ToSlash(abs)}).String()
	}
	// HOST:PORT, perhaps with user name and password before it and a path behind.
	address := text[strings.LastIndexByte(text, '@')+1:]
	address, _, _ = strings.Cut(address, "/")
	address, _, _ = strings.Cut(address, "?")
	_, port, err := net.SplitHostPort(address)
	n, perr := strconv.ParseUint(port, 10, 16)
	scheme := usualPorts[n]
	switch {
	case err != nil, perr != nil, !slices.Contains(schemes, scheme):
		return ""
	case strings.ContainsAny(text, "@?"):
		return scheme + ":// in front of it"
	}
	return scheme + "://" + view.Clean(text)
}

// similar is a scheme of which the given one is the beginning, or the other way round: postgre://,
// zk:// and redis+tls:// are what people write.
func similar(given string, schemes []string) string {
	if given == "zk" {
		given = "zookeeper"
	}
	for _, s := range schemes {
		if len(given) > 2 && (strings.HasPrefix(s, given) || strings.HasPrefix(given, s)) {
			return s + "://"
		}
	}
	return ""
}

// notSettings are variables with our prefix that set nothing here: the socket of hold --export's holder,
// and those by which hasp-torture and our examples tell their scripts the server.
var notSettings = []string{"HASP_HOLD", "HASP_ADDRESS", "HASP_TTL_MS", "HASP_SERVER"}

// refuseVariables refuses a variable that begins as ours do and is none: HASP_SOTRE=redis://h would
// silently lock on this machine alone. The verbs that need no store look at none.
func (s *settings) refuseVariables(fs *pflag.FlagSet) error {
	if fs.Lookup("store") == nil {
		return nil
	}
	for _, kv := range s.environ() {
		name, _, _ := strings.Cut(kv, "=")
		if !maySet(name) || s.variables[name] || slices.Contains(notSettings, name) {
			continue
		}
		if !ofService(name) {
			return exit.Misconfigured("%s is not a variable of hasp%s; unset it", view.Clean(name), suggestion(s.asCommands(), name))
		}
	}
	return nil
}

// ofService reports whether a variable is one of those by which Kubernetes tells each pod of a
// service called hasp or hasp-locks: HASP_SERVICE_HOST, HASP_PORT_7070_TCP_ADDR.
func ofService(name string) bool {
	return regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`).MatchString(name)
}

// asCommands has the variables for names: cobra finds the nearest. Of two that are as near the
// store is meant.
func (s *settings) asCommands() *cobra.Command {
	c := &cobra.Command{}
	for _, name := range append([]string{storeVariable}, slices.Sorted(maps.Keys(s.variables))...) {
		c.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	return c
}
