//go:build unix && !noserve && !nohttp && !noredis

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
)

// authority issues certificates for loopback.
type authority struct {
	t     *testing.T
	file  string // its certificate
	about *x509.Certificate
	key   *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	a.about = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "an authority"}, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	a.key = a.newKey()
	a.file = a.write("CERTIFICATE", a.sign(a.about, a.key))
	return a
}

// issue makes a certificate and its key.
func (a *authority) issue(commonName string) (cert, key string) {
	a.t.Helper()
	k := a.newKey()
	secret, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: commonName}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: a.about.NotBefore, NotAfter: a.about.NotAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	return a.write("CERTIFICATE", a.sign(about, k)), a.write("PRIVATE KEY", secret)
}

func (a *authority) newKey() *ecdsa.PrivateKey {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return k
}

func (a *authority) sign(about *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	der, err := x509.CreateCertificate(rand.Reader, about, a.about, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return der
}

func (a *authority) write(kind string, der []byte) (file string) {
	file = filepath.Join(a.t.TempDir(), "pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return file
}

// With TLS and tokens: each may do what its line says, and no word of it is in a message.
func TestServeTokens(t *testing.T) {
	dir := t.TempDir()
	tokens := filepath.Join(dir, "tokens")
	token := map[string]string{}
	for name, args := range map[string][]string{"all": {"--rights", "look,lock,operate"}, "reader": {"--rights", "look", "--prefix", "nightly/"}} {
		code, out, errOut := hasp(t, "", append([]string{"serve", "token", "--tokens", tokens, name}, args...)...)
		if code != 0 {
			t.Fatalf("%d, %s", code, errOut)
		}
		token[name] = strings.TrimSpace(out)
	}
	ca := newAuthority(t)
	cert, key := ca.issue("server")
	server := startServer(t, backends.SharedRedis(t).URL(), "--tokens", tokens, "--cert", cert, "--key", key)
	host, ok := strings.CutPrefix(server, "https://")
	if !ok {
		t.Fatalf("it serves %s", server)
	}
	as := func(token string) string {
		return "hasp+https://" + token + "@" + host + "?ca=" + url.QueryEscape(ca.file)
	}
	if code, out, errOut := hasp(t, as(token["all"]), "run", "nightly/a", "--", "sh", "-c", `echo "$HASP_STORE" ${HASP_TOKEN:+held}`); code != 0 || !strings.Contains(out, " held") || strings.Contains(out, token["all"]) {
		t.Errorf("run: %d, %s%s", code, out, errOut)
	}
	for _, c := range []struct {
		token string
		code  int
		args  []string
	}{
		{token["reader"], 0, []string{"who", "nightly/a"}},
		{token["reader"], 78, []string{"who", "other"}},
		{token["reader"], 78, []string{"run", "nightly/a", "--", "true"}},
		{"AAAABBBBCCCCDDDD", 78, []string{"who", "nightly/a"}},
		{token["all"], 0, []string{"doctor"}},
	} {
		code, out, errOut := hasp(t, as(c.token), c.args...)
		if code != c.code || strings.Contains(out+errOut, c.token) {
			t.Errorf("%q: %d, want %d\n%s%s", c.args, code, c.code, out, errOut)
		}
	}
	if code, _, errOut := hasp(t, "hasp+https://"+token["all"]+"@"+host, "who", "nightly/a"); code == 0 {
		t.Errorf("a certificate of an unknown authority is accepted: %s", errOut)
	}
}

// The recipe of CI runners: with a token for deploy/ alone their deploys do not overlap, tokens grow,
// and a deploy does not see the secret. Without the lock they do overlap.
func TestDeploysThroughServe(t *testing.T) {
	tokens, deploys := filepath.Join(t.TempDir(), "tokens"), filepath.Join(t.TempDir(), "deploys")
	code, secret, errOut := hasp(t, "", "serve", "token", "--tokens", tokens, "--rights", "look,lock", "--prefix", "deploy/", "ci")
	if code != 0 {
		t.Fatalf("%d, %s", code, errOut)
	}
	secret = strings.TrimSpace(secret)
	ca := newAuthority(t)
	cert, key := ca.issue("server")
	server := startServer(t, backends.SharedRedis(t).URL(), "--tokens", tokens, "--cert", cert, "--key", key)
	store := "hasp+https://" + secret + "@" + strings.TrimPrefix(server, "https://") + "?ca=" + url.QueryEscape(ca.file)
	const runners = 4
	deploy := []string{"sh", "-c", `echo "begin $HASP_STORE" >>"$0"; sleep 0.3; echo "end ${HASP_TOKEN-}" >>"$0"`, deploys}
	turns := func(run func() error) string {
		var all sync.WaitGroup
		for range runners {
			all.Go(func() {
				if err := run(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		text, err := os.ReadFile(deploys)
		if err != nil || os.Remove(deploys) != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	t.Setenv("HASP_REQUIRE_STORE", "1")
	text := turns(func() error {
		args := append([]string{"run", "--with-parent", "--wait", "30m", "--max-hold", "20m", "--note", "app 1a2b3c", "deploy/prod", "--"}, deploy...)
		if code, _, errOut := hasp(t, store, args...); code != 0 {
			return fmt.Errorf("%d, %s", code, errOut)
		}
		return nil
	})
	var order []uint64
	for _, m := range regexp.MustCompile(`begin .*\nend (\d+)\n`).FindAllStringSubmatch(text, -1) {
		n, _ := strconv.ParseUint(m[1], 10, 64)
		order = append(order, n)
	}
	if len(order) != runners || !slices.IsSorted(order) || strings.Contains(text, secret) {
		t.Errorf("the deploys:\n%s", text)
	}
	if control := turns(func() error { return exec.Command(deploy[0], deploy[1:]...).Run() }); !regexp.MustCompile(`begin .*\nbegin `).MatchString(control) {
		t.Errorf("deploys without a lock have turns as well:\n%s", control)
	}
	if code, _, _ := hasp(t, store, "run", "other", "--", "true"); code != 78 {
		t.Errorf("a name outside of deploy/: %d", code)
	}
}

// With certificates of clients: each may do what the line with its name says, and without one no request is read.
func TestServeCertificates(t *testing.T) {
	ca, dir := newAuthority(t), t.TempDir()
	settings, tokens := filepath.Join(dir, "settings"), filepath.Join(dir, "tokens")
	code, token, errOut := hasp(t, "", "serve", "token", "--tokens", tokens, "--rights", "look,lock,operate", "operator")
	if code != 0 {
		t.Fatalf("%d, %s", code, errOut)
	}
	token = strings.TrimSpace(token)
	cert, key := ca.issue("server")
	for file, text := range map[string]string{
		tokens:   "web look,lock nightly/ cert:web.example.com\n",
		settings: "tokens = " + tokens + "\ncert = " + cert + "\nkey = " + key + "\nclient-ca = " + ca.file + "\n",
	} {
		f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(text); err != nil || f.Close() != nil {
			t.Fatal(err)
		}
	}
	host, ok := strings.CutPrefix(startServer(t, backends.SharedRedis(t).URL(), "--config", settings), "https://")
	if !ok {
		t.Fatal("it serves without TLS")
	}
	as := func(by *authority, name, token string) string {
		cert, key := by.issue(name)
		return "hasp+https://" + token + host + "?" + url.Values{"ca": {ca.file}, "cert": {cert}, "key": {key}}.Encode()
	}
	web := as(ca, "web.example.com", "")
	for _, c := range []struct {
		what, store string
		code        int
		args        []string
	}{
		{"a lock by a certificate", web, 0, []string{"run", "nightly/cert", "--", "true"}},
		{"another prefix", web, 78, []string{"run", "daily", "--", "true"}},
		{"a right that the line has not", web, 78, []string{"doctor"}},
		{"a token beside the certificate", as(ca, "web.example.com", token+"@"), 0, []string{"doctor"}},
		{"a token with a certificate of no line", as(ca, "db.example.com", token+"@"), 0, []string{"doctor"}},
		{"a wrong token beside a good certificate", as(ca, "web.example.com", "AAAABBBBCCCCDDDD@"), 78, []string{"who", "nightly/cert"}},
		{"a certificate of no line", as(ca, "db.example.com", ""), 78, []string{"who", "nightly/cert"}},
		{"a certificate of another authority", as(newAuthority(t), "web.example.com", ""), 69, []string{"who", "nightly/cert"}},
		{"no certificate", "hasp+https://" + token + "@" + host + "?ca=" + url.QueryEscape(ca.file), 69, []string{"who", "nightly/cert"}},
	} {
		if code, out, errOut := hasp(t, c.store, c.args...); code != c.code || strings.Contains(out+errOut, token) {
			t.Errorf("%s: %d, want %d\n%s%s", c.what, code, c.code, out, errOut)
		} else if code != 0 {
			t.Logf("%s: %s", c.what, errOut)
		}
	}
}
