package backends

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/serverprocess"
)

// certificates are a server's key and certificate for 127.0.0.1 and localhost, in PEM files, and
// the CA with which a client trusts this server and no other.
type certificates struct {
	ca, cert, key string // files
	client        *tls.Config
}

// newCertificates makes them for a server that runs as the account, by a certificate authority that
// cannot be used again: its key is not kept.
func newCertificates(dir string, a *serverprocess.Account) (*certificates, error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "hasp test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "localhost"},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	caDER, err1 := x509.CreateCertificate(rand.Reader, authority, authority, caKey.Public(), caKey)
	certDER, err2 := x509.CreateCertificate(rand.Reader, server, authority, key.Public(), caKey)
	keyDER, err3 := x509.MarshalPKCS8PrivateKey(key)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	c := &certificates{
		ca:   filepath.Join(dir, "ca.pem"),
		cert: filepath.Join(dir, "server.pem"),
		key:  filepath.Join(dir, "server.key"),
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}))
	c.client = &tls.Config{RootCAs: pool, ServerName: "localhost", MinVersion: tls.VersionTLS12}
	return c, errors.Join(
		writePEM(c.ca, a, "CERTIFICATE", caDER),
		writePEM(c.cert, a, "CERTIFICATE", certDER),
		writePEM(c.key, a, "PRIVATE KEY", keyDER))
}

func writePEM(file string, a *serverprocess.Account, kind string, der []byte) error {
	return serverprocess.WriteFile(file, a, string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
}

// RenewCertificates has another authority sign another certificate for the server of which ca is the
// authority's file. The server takes them at the latest when it starts again. It returns what then
// trusts the server.
func RenewCertificates(tb testing.TB, ca string) *tls.Config {
	tb.Helper()
	dir := filepath.Dir(ca)
	c, err := newCertificates(dir, nil) // the files stay their account's
	if store := filepath.Join(dir, "keystore.pem"); err == nil && exists(store) {
		err = concatenate(store, c.key, c.cert)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return c.client
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
