package storeurl

import (
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/secrets"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/exit"
)

// usualPorts are those by which an address without a scheme tells its store.
var usualPorts = map[uint64]string{
	6379: "redis", 6380: "rediss", 2379: "etcd", 2181: "zookeeper", 5432: "postgres", 3306: "mysql",
}

// Check refuses a store that no driver of this program can open, and guesses what was meant.
// The library's own error asks whether the driver's package is imported, which is a question for
// programmers. Nothing of the text is shown that could be a secret.
func (s *URL) Check() error {
	schemes := driver.Schemes()
	scheme, _, found := strings.Cut(s.text, ":")
	if found && slices.Contains(schemes, scheme) {
		return nil
	}
	guess := ""
	if _, ours := secrets.Variables[scheme]; found && ours {
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
