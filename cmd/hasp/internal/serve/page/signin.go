package page

import (
	"cmp"
	"crypto/rand"
	"net/http"
	"strings"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
)

const (
	signedInFor  = 12 * time.Hour // since the last request
	mostSignedIn = 10_000
)

// signedIn is a person's session with the page. A browser sends a cookie to every port of its host,
// where other programs may listen: so the cookie is not the token but a key to this, which is of no
// use elsewhere, not for /v1 either. It has the token's hash, by which a token that is taken out of
// the server's file ends it.
type signedIn struct {
	token access.Hash
	last  time.Time
}

// secure reports that the browser has come by TLS.
func (p *Page) secure(q *http.Request) bool { return p.o.Secure || q.TLS != nil }

// cookie is the one of the page. With TLS its name has a prefix by which browsers take it from no
// other host, and not without TLS.
func (p *Page) cookie(q *http.Request, value string) *http.Cookie {
	c := &http.Cookie{Name: "hasp-page", Value: value, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: p.secure(q)}
	if c.Secure {
		c.Name = "__Host-hasp-page"
	}
	return c
}

// key is the value of the browser's cookie, "" if there is none.
func (p *Page) key(q *http.Request) string {
	c, err := q.Cookie(p.cookie(q, "").Name)
	if err != nil {
		return ""
	}
	return c.Value
}

// Holder finds who has signed in with the browser of a request; sent: somebody has, or had.
func (p *Page) Holder(q *http.Request) func(known *access.Tokens) (h *access.Holder, sent bool) {
	return func(known *access.Tokens) (*access.Holder, bool) {
		key := p.key(q)
		p.mu.Lock()
		s := p.sessions[key]
		now := time.Now()
		if s != nil && now.Sub(s.last) > signedInFor {
			delete(p.sessions, key)
			s = nil
		}
		if s == nil {
			p.mu.Unlock()
			return nil, key != ""
		}
		s.last = now
		token := s.token
		p.mu.Unlock()
		return known.FindHash(token), true
	}
}

// login begins a session for a known token.
func (p *Page) login(w http.ResponseWriter, q *http.Request, _ *access.Holder) (any, error) {
	q.Body = http.MaxBytesReader(w, q.Body, 4096)
	token := access.HashOf(strings.TrimSpace(q.PostFormValue("token")))
	if p.o.Find(token) == nil {
		return askToSignIn(w, "This server does not know the token.")
	}
	key := rand.Text()
	p.mu.Lock()
	if len(p.sessions) >= mostSignedIn {
		oldest := ""
		for k, s := range p.sessions {
			if oldest == "" || s.last.Before(p.sessions[oldest].last) {
				oldest = k
			}
		}
		delete(p.sessions, oldest)
	}
	p.sessions[key] = &signedIn{token: token, last: time.Now()}
	p.mu.Unlock()
	return signed(w, q, p.cookie(q, key))
}

func (p *Page) logout(w http.ResponseWriter, q *http.Request, _ *access.Holder) (any, error) {
	p.mu.Lock()
	delete(p.sessions, p.key(q))
	p.mu.Unlock()
	c := p.cookie(q, "")
	c.MaxAge = -1
	return signed(w, q, c)
}

// signed leads back to the page, with another cookie.
func signed(w http.ResponseWriter, q *http.Request, c *http.Cookie) (any, error) {
	http.SetCookie(w, c)
	http.Redirect(w, q, "/", http.StatusSeeOther)
	return Written, nil
}

// askToSignIn is the page for those who have not.
func askToSignIn(w http.ResponseWriter, words string) (any, error) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(http.StatusUnauthorized)
	fill(w, loginDocument, map[string]string{"WORDS": cmp.Or(words, "Sign in with a token of this server. hasp serve token makes one.")})
	return Written, nil
}
