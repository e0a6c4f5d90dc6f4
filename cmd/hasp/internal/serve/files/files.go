// Package files reads the files that decide who may ask a server and what it shows of itself:
// tokens and certificates. They are read again when they change. What cannot be used is not taken:
// the server goes on with what it has read before, and says so.
package files

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
)

// Files are named by the flags of hasp serve; "" is none.
type Files struct {
	Tokens, Cert, Key, ClientCA string

	secure atomic.Pointer[tls.Config]
	seen   []look // before they were read last
}

// Read reads all files, and returns the tokens. After an error nothing has changed.
//
// It looks before it reads. What is changed while it reads, or before Follow begins, is then read
// again at the next look, at the worst once too often.
func (f *Files) Read() (*access.Tokens, error) {
	f.seen = f.looks()
	secure, err := f.readTLS()
	if err != nil {
		return nil, err
	}
	var tokens *access.Tokens
	if f.Tokens != "" {
		if tokens, err = readTokens(f.Tokens); err != nil {
			return nil, fmt.Errorf("--tokens: %w", err)
		}
		if tokens.Certificates() && f.ClientCA == "" {
			return nil, fmt.Errorf("--tokens: %s has a line for a certificate, and without --client-ca no client can show one", f.Tokens)
		}
	}
	f.secure.Store(secure)
	return tokens, nil
}

// TLS is for a server whose connections each have what was read last; nil without certificates.
func (f *Files) TLS() *tls.Config {
	if f.Cert == "" {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.secure.Load(), nil }}
}

func (f *Files) readTLS() (*tls.Config, error) {
	if f.Cert == "" {
		return nil, nil
	}
	// A certificate is public; who can write it, or its authority's, decides whom clients talk to.
	err := trust(f.Cert, othersWrite)
	if err == nil {
		err = trust(f.Key, othersWrite|othersRead)
	}
	var pair tls.Certificate
	if err == nil {
		pair, err = tls.LoadX509KeyPair(f.Cert, f.Key)
	}
	if err != nil {
		return nil, fmt.Errorf("--cert and --key: %w", err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}
	if f.ClientCA == "" {
		return c, nil
	}
	if err := trust(f.ClientCA, othersWrite); err != nil {
		return nil, fmt.Errorf("--client-ca: %w", err)
	}
	text, err := os.ReadFile(f.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("--client-ca: %w", err)
	}
	c.ClientCAs = x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--client-ca: %s has no certificate in PEM", f.ClientCA)
	}
	// Required of all, also of probes: a connection without one ends before any of its bytes are
	// read as HTTP.
	c.ClientAuth = tls.RequireAndVerifyClientCert
	return c, nil
}

// readTokens reads a file of tokens.
func readTokens(file string) (*access.Tokens, error) {
	if err := trust(file, othersWrite); err != nil {
		return nil, err
	}
	r, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	t, err := access.Read(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return t, nil
}

// AddToken adds the line of a token to a file, unless the file would be refused with it.
func AddToken(file, name, line string) error {
	switch known, err := readTokens(file); {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, access.ErrEmpty):
	case err != nil:
		return err
	case known.Has(name):
		return fmt.Errorf("%s has a token for %q: give the new one another name, or remove the line", file, name)
	}
	w, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, line)
	return errors.Join(err, w.Close())
}

// What others than a file's owner must not be able to do. The group of a key may read it: a service
// manager hands it over by that.
const (
	othersWrite fs.FileMode = 0o022
	othersRead  fs.FileMode = 0o004
)

// trust refuses a file that another user could have written, or reads what is secret.
func trust(file string, forbidden fs.FileMode) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	mode := info.Mode().Perm()
	switch owner, known := ownerOf(info); {
	case !known:
	case owner != 0 && owner != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d: it must be of root, or of the user that the server runs as; chown it", file, owner)
	case mode&forbidden&othersWrite != 0:
		return fmt.Errorf("%s can be written by others than its owner (mode %04o): chmod go-w it", file, mode)
	case mode&forbidden&othersRead != 0:
		return fmt.Errorf("%s can be read by everybody (mode %04o): chmod 600 it", file, mode)
	}
	return nil
}

// lookEvery is how often the files are looked at.
const lookEvery = 5 * time.Second

// Follow reads the files again when one has changed since Read, and when again is sent something,
// until ctx ends. set gets new tokens.
func (f *Files) Follow(ctx context.Context, again <-chan struct{}, log *slog.Logger, set func(*access.Tokens)) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		asked := false
		select {
		case <-tick.C:
		case <-again:
			asked = true
		case <-ctx.Done():
			return
		}
		if !asked && slices.Equal(f.looks(), f.seen) {
			continue
		}
		// A pair of which one file is written and the other not yet is tried again: the other
		// changes.
		tokens, err := f.Read()
		if err != nil {
			log.Error("the files of tokens and certificates cannot be used; the server goes on with what it has read before", slog.Any("error", err))
			continue
		}
		set(tokens)
		log.Info("tokens and certificates were read again")
	}
}

// look tells a file's content from the one before: a file that is written anew has another time,
// and one that takes its place is another file.
type look struct {
	at   time.Time
	size int64
	id   uint64
}

func (f *Files) looks() (all []look) {
	for _, file := range []string{f.Tokens, f.Cert, f.Key, f.ClientCA} {
		var l look
		if info, err := os.Stat(file); err == nil {
			l = look{info.ModTime(), info.Size(), idOf(info)}
		}
		all = append(all, l)
	}
	return all
}
