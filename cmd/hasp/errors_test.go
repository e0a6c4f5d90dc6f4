//go:build unix

package main

import (
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
)

// A nested hasp that is not let in, since the outer one keeps the credentials, says what to add.
func TestNestedWithoutCredentials(t *testing.T) {
	for name, store := range map[string]string{
		"redis":    backends.StartRedis(t, backends.RedisOptions{Password: "hunter2"}).URL(),
		"postgres": backends.StartPostgres(t, backends.PostgresOptions{Password: "hunter2"}).URL(),
		"mysql":    backends.SharedMariaDB(t).URL(),
	} {
		code, _, errOut := hasp(t, store, "run", "a", "--", "hasp", "run", "b", "--", "true")
		if code != 78 || !strings.Contains(errOut, "add --pass-credentials to the outer one") || strings.Contains(errOut, "hunter2") {
			t.Errorf("%s: %d, %s", name, code, errOut)
		}
		code, _, errOut = hasp(t, store, "run", "-l", "a", "-l", "b", "--permits", "2", "--", "hasp", "run", "c", "--", "true")
		if code != 78 || !strings.Contains(errOut, "add --pass-credentials to the outer one") {
			t.Errorf("%s, under several locks: %d, %s", name, code, errOut)
		}
		if code, _, errOut := hasp(t, store, "run", "--pass-credentials", "a", "--", "hasp", "run", "b", "--", "true"); code != 0 {
			t.Errorf("%s with --pass-credentials: %d, %s", name, code, errOut)
		}
	}
	// Who is not nested gets no such advice.
	server := backends.StartRedis(t, backends.RedisOptions{Password: "hunter2"})
	code, _, errOut := hasp(t, "redis://"+server.Addr, "try", "a", "--", "true")
	if code != 78 || strings.Contains(errOut, "pass-credentials") || !strings.Contains(errOut, "wants a password, as in redis://:PASSWORD@HOST: ") {
		t.Errorf("not nested: %d, %s", code, errOut)
	}
	code, _, errOut = hasp(t, "redis://:s3cret@"+server.Addr, "try", "a", "--", "true")
	if code != 78 || !strings.Contains(errOut, "check user and password: ") || strings.Contains(errOut, "s3cret") {
		t.Errorf("with another password: %d, %s", code, errOut)
	}
}

// The address of a server without its scheme.
func TestMeantURL(t *testing.T) {
	for store, want := range map[string]string{
		"127.0.0.1:6379":            "did you mean redis://127.0.0.1:6379?",
		"db.example.org:5432/app":   "did you mean postgres://db.example.org:5432/app?",
		"[::1]:2379":                "did you mean etcd://[::1]:2379?",
		"ana:s3cret@db:3306/app":    "did you mean mysql:// in front of it?",
		"zk:2181?auth=s3cret":       "did you mean zookeeper:// in front of it?",
		"zk://h":                    "did you mean zookeeper://?",
		"postgre://ana:s3cret@db/x": "did you mean postgres://?",
		"http://ana:s3cret@db/x":    "zookeeper://\n",
		"db:9999":                   "zookeeper://\n",
	} {
		code, _, errOut := hasp(t, store, "try", "a", "--", "true")
		if code != 78 || !strings.Contains(errOut, want) || strings.Contains(errOut, "s3cret") || strings.Contains(errOut, "imported") {
			t.Errorf("%s: %d, %s; want %q", store, code, errOut, want)
		}
	}
}
