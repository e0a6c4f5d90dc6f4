// Package secrets knows where credentials may stand: in the parameters of a store's URL, on a
// command line, in the environment.
package secrets

import (
	"slices"
	"strings"
)

// Variables are, by scheme, those from which the driver of a scheme (or its client library)
// takes its credentials. They are taken from the command's environment only if that store
// is in use: a dump that runs under a file lock needs its PGPASSWORD.
//
// Each scheme of hasp's drivers has a line, also those that are other words for the same driver.
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
	// What AWS_* and KUBECONFIG say is who the job is, to everything that it calls, not the password
	// of the store of locks: a job in a cloud without it is a job that fails.
	"s3":   nil,
	"kube": nil,
}

// Parameter reports whether a parameter is called like a secret.
func Parameter(key string) bool {
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
