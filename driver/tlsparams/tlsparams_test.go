package tlsparams_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/tlsparams"
)

// writePEM makes a certificate for localhost that vouches for itself, and returns the files
// of the certificate and its key.
func writePEM(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	certDER, err1 := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	keyDER, err2 := x509.MarshalPKCS8PrivateKey(private)
	cert, key = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	err3 := os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certDER}), 0o600)
	err4 := os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// Both sides show the certificate and demand the other's: a handshake proves that every
// file has arrived where it belongs.
func TestConfig(t *testing.T) {
	cert, key := writePEM(t)
	p := driver.NewParams(url.Values{"ca": {cert}, "cert": {cert}, "key": {key}})
	params := tlsparams.Take(p)
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	client, err := params.Config(false)
	if err != nil {
		t.Fatal(err)
	}
	if client.MinVersion != tls.VersionTLS12 || client.ServerName != "" {
		t.Errorf("least version %x, server name %q", client.MinVersion, client.ServerName)
	}
	server := client.Clone()
	server.ClientAuth, server.ClientCAs = tls.RequireAndVerifyClientCert, client.RootCAs
	client.ServerName = "localhost"
	for what, c := range map[string]struct {
		client *tls.Config
		ok     bool
	}{
		"all files":       {client, true},
		"without the ca":  {&tls.Config{ServerName: "localhost", Certificates: client.Certificates}, false},
		"without cert":    {&tls.Config{ServerName: "localhost", RootCAs: client.RootCAs}, false},
		"of another name": {&tls.Config{ServerName: "elsewhere", RootCAs: client.RootCAs, Certificates: client.Certificates}, false},
	} {
		if err := handshake(t, c.client, server); (err == nil) != c.ok {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// handshake lets both sides talk over a real connection, since a pipe without a buffer
// hangs when both send an alert, and returns what either has against the other. The server
// is asked for one byte: with TLS 1.3 a client learns that it was refused by reading only.
func handshake(t *testing.T, client, server *tls.Config) error {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		c.Write([]byte{1}) // what goes wrong here the client sees
		c.Close()
	}()
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: 10 * time.Second}, "tcp", l.Addr().String(), client)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Read(make([]byte, 1))
	return err
}

func TestFaults(t *testing.T) {
	cert, key := writePEM(t)
	for what, c := range map[string]struct {
		query url.Values
		want  string
	}{
		"no such ca":       {url.Values{"ca": {"/nowhere"}}, "parameter ca: open /nowhere"},
		"a key for a ca":   {url.Values{"ca": {key}}, "parameter ca: no PEM certificate in " + key},
		"cert alone":       {url.Values{"cert": {cert}}, "parameters cert and key belong together"},
		"key alone":        {url.Values{"key": {key}}, "parameters cert and key belong together"},
		"cert for a key":   {url.Values{"cert": {cert}, "key": {cert}}, "parameters cert and key: "},
		"no such key":      {url.Values{"cert": {cert}, "key": {"/nowhere"}}, "parameters cert and key: open /nowhere"},
		"off, with a ca":   {url.Values{"tls": {"false"}, "ca": {cert}}, "need tls=true"},
		"off, with a name": {url.Values{"tls": {"false"}, "servername": {"x"}}, "need tls=true"},
		"neither":          {url.Values{"tls": {"auto"}}, `"tls" is not true or false`},
	} {
		p := driver.NewParams(c.query)
		params := tlsparams.Take(p)
		_, err := params.Config(true)
		if err == nil {
			err = p.Err()
		}
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %s", what, err, c.want)
		}
	}
}

// TLS is on where the URL or the store's own rule asks for it, and files and a name ask, too.
func TestOnOrOff(t *testing.T) {
	for _, c := range []struct {
		query     url.Values
		byDefault bool
		want      bool
	}{
		{nil, false, false}, {nil, true, true},
		{url.Values{"tls": {"true"}}, false, true}, {url.Values{"tls": {"false"}}, true, false},
		{url.Values{"servername": {"x"}}, false, true},
	} {
		p := driver.NewParams(c.query)
		cfg, err := tlsparams.Take(p).Config(c.byDefault)
		if err != nil || p.Err() != nil || (cfg != nil) != c.want {
			t.Errorf("%v, by default %t: on is %t, %v, %v", c.query, c.byDefault, cfg != nil, err, p.Err())
		}
		if cfg != nil && cfg.ServerName != c.query.Get("servername") {
			t.Errorf("%v: the server's name is %q", c.query, cfg.ServerName)
		}
	}
}

// What files hold when a connection is made counts, with the name that a driver has added; files
// that cannot be used are as if they had not changed.
func TestFresh(t *testing.T) {
	first, firstKey := writePEM(t)
	second, secondKey := writePEM(t)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	renew := func(cert2, key2 string) {
		for to, from := range map[string]string{cert: cert2, key: key2} {
			b, err := os.ReadFile(from)
			if err == nil {
				err = os.WriteFile(to, b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	renew(first, firstKey)
	p := driver.NewParams(url.Values{"ca": {cert}, "cert": {cert}, "key": {key}})
	params := tlsparams.Take(p)
	client, err := params.Config(false)
	if err != nil {
		t.Fatal(err)
	}
	client.ServerName = "localhost"
	server := func() *tls.Config {
		c := client.Clone()
		c = params.Fresh(c)
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, c.RootCAs
		return c
	}
	old := server()
	renew(second, secondKey)
	if err := handshake(t, params.Fresh(client), server()); err != nil {
		t.Errorf("renewed: %v", err)
	}
	if err := handshake(t, params.Fresh(client), old); err == nil {
		t.Error("the old certificate is trusted still")
	}
	renewed := server()
	other := params.Fresh(client)
	other.ServerName = "elsewhere"
	if err := handshake(t, other, renewed); err == nil {
		t.Error("another name is trusted")
	}
	renew(first, secondKey) // half written
	if got := params.Fresh(client); got != client {
		t.Error("a pair that does not belong together is used")
	}
	if tlsparams.Take(driver.NewParams(nil)).Fresh(client) != client || params.Fresh(nil) != nil {
		t.Error("without files something changes")
	}
}
