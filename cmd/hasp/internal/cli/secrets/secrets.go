// Package secrets knows where credentials may stand: in the parameters of a store's URL, on a
// command line, in the environment.
package secrets

import (
	"net/url"
	"slices"
	"strings"

	"github.com/hasplock/hasp/driver"
)

// Variables are, by scheme, those from which the driver of a scheme (or its client library)
// takes its credentials. They are taken from the command's environment only if that store
// is in use: a dump that runs under a file lock needs its PGPASSWORD.
//
// Each scheme of the drivers that a build may leave out has a line, also those that are other words
// for the same driver.
var Variables = map[string][]string{
	"redis":      {"REDISCLI_AUTH"},
	"rediss":     {"REDISCLI_AUTH"},
	"valkey":     {"REDISCLI_AUTH"},
	"valkeys":    {"REDISCLI_AUTH"},
	"redlock":    {"REDISCLI_AUTH"},
	"redlocks":   {"REDISCLI_AUTH"},
	"postgres":   {"PGPASSWORD", "PGSSLPASSWORD"},
	"postgresql": {"PGPASSWORD", "PGSSLPASSWORD"},
	"mysql":      {"MYSQL_PWD"},
	"mariadb":    {"MYSQL_PWD"},
	"etcd":       {"ETCDCTL_USER", "ETCDCTL_PASSWORD"},
	"zookeeper":  {"ZOOKEEPER_AUTH"},
	"hasp+http":  nil, // in the URL only
	"hasp+https": nil,
	// AWS_* and KUBECONFIG say who the job is, to everything that it calls: they are no password of
	// the store of locks, and a job in a cloud fails without them.
	"s3":   nil,
	"kube": nil,
}

// InValue reports whether a value may be one that others must not read. A text that is no URL
// is taken for one with a password if it could be. A URL of hasp serve has its token where others
// have a user's name.
func InValue(value string) bool {
	u, err := driver.SplitURL(value)
	if err != nil {
		return strings.Contains(value, "@")
	}
	if _, given := u.User.Password(); given || strings.HasPrefix(u.Scheme, "hasp+") && u.User.Username() != "" {
		return true
	}
	return slices.ContainsFunc(strings.FieldsFunc(u.RawQuery, func(r rune) bool { return r == '&' || r == ';' }), func(part string) bool {
		key, _, _ := strings.Cut(part, "=")
		return Parameter(part) && !strings.HasSuffix(strings.ToLower(key), "file")
	})
}

// Parameter reports whether a parameter is called like a secret, or has one behind a ';', which
// drivers may take for '&' and url.Values drops together with what stands around it.
func Parameter(parameter string) bool {
	return slices.ContainsFunc(strings.Split(parameter, ";"), func(part string) bool {
		key, _, _ := strings.Cut(part, "=")
		if plain, err := url.QueryUnescape(key); err == nil {
			key = plain
		}
		return named(key)
	})
}

// named reports whether a word is called like a secret.
func named(key string) bool {
	key = strings.ToLower(key)
	for _, word := range []string{"pass", "pwd", "secret", "token", "auth", "credential"} {
		if strings.Contains(key, word) {
			return true
		}
	}
	return false
}

// spans returns the parts of a command-line argument to be masked: what stands
// between "://" and the last '@', which is user name and password even where they are not
// percent-encoded, and everything behind '?', since drivers may take secrets there.
func spans(arg string) (all [][2]int) {
	_, rest, found := strings.Cut(arg, "://")
	if !found {
		return nil
	}
	start := len(arg) - len(rest)
	if at := strings.LastIndexByte(rest, '@'); at > 0 {
		all = append(all, [2]int{start, start + at})
		start += at
	}
	if q := strings.IndexByte(arg[start:], '?'); q >= 0 && start+q+1 < len(arg) {
		all = append(all, [2]int{start + q + 1, len(arg)})
	}
	return all
}

// spansOfVariable is spans for NAME=VALUE of the environment: for hasp's variables that
// may hold a URL, and for those that are secrets as a whole.
func spansOfVariable(entry string) [][2]int {
	name, value, _ := strings.Cut(entry, "=")
	if strings.HasPrefix(name, "HASP_") {
		return spans(entry)
	}
	for _, secrets := range Variables {
		if slices.Contains(secrets, name) {
			return [][2]int{{len(entry) - len(value), len(entry)}}
		}
	}
	return nil
}
