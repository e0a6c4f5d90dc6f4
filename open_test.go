package hasp_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/memlock"
)

func TestOpenURL(t *testing.T) {
	began := time.Now()
	c, err := hasp.Open(t.Context(), "mem://TestOpenURL?ttl=4s&margin=500ms")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d, err := hasp.Open(t.Context(), "mem://TestOpenURL")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	l := lock(t, c, "a")
	if _, err := d.Mutex("a").TryLock(t.Context()); err == nil {
		t.Error("two opens of one URL do not share their locks")
	}
	const want = 4*time.Second - 40*time.Millisecond - 500*time.Millisecond
	if left := time.Until(l.Deadline()); left > want || left < want-time.Since(began) {
		t.Errorf("%s of trust, want nearly %s", left, want)
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, u := range []string{
		"", "mem", "://", "nosuch://host", "redis-sentinel", "mem://a:b:c", "mem://h:99999999", "mem://a%zz",
		"mem://x?ttl=0", "mem://x?ttl=-1s", "mem://x?ttl=soon", "mem://x?ttl=1s&ttl=2s", "mem://x?margin=0s",
		"mem://x?ttl=1ns", "mem://x?ttl=1s&margin=900ms", "mem://x?tls=1", "mem://x?%zz", "mem://x#y", "mem://x/path",
	} {
		c, err := hasp.Open(t.Context(), u)
		if err == nil {
			c.Close()
			t.Errorf("Open(%q) succeeded", u)
			continue
		}
		wantErr(t, err, hasp.ErrInvalid)
	}
	_, err := hasp.Open(noContext, "mem://x")
	wantErr(t, err, hasp.ErrInvalid)
	_, err = hasp.Open(t.Context(), "mem://x?tlt=5s")
	if err == nil || !strings.Contains(err.Error(), `"tlt"`) {
		t.Errorf("the mistyped parameter is not named: %v", err)
	}
	_, err = hasp.Open(t.Context(), "redis://h")
	if err == nil || !strings.Contains(err.Error(), "hasp/redislock") {
		t.Errorf("the import that is missing is not named: %v", err)
	}
}

func TestOptions(t *testing.T) {
	for name, opt := range map[string]hasp.Option{
		"TTL 0":               hasp.WithTTL(0),
		"TTL negative":        hasp.WithTTL(-time.Second),
		"TTL too short":       hasp.WithTTL(100 * time.Millisecond),
		"guard 0":             hasp.WithSafetyMargin(0),
		"guard of the TTL":    hasp.WithSafetyMargin(10 * time.Second),
		"owner with an essay": hasp.WithOwner(hasp.Owner{User: strings.Repeat("x", 1025)}),
		"owner that asks":     hasp.WithOwner(hasp.Owner{Asks: "why"}),
		"owner that listens":  hasp.WithOwner(hasp.Owner{Listens: true}),
		"owner with a token":  hasp.WithOwner(hasp.Owner{User: "ana", Via: "deploy"}),
		"another's owner":     hasp.WithOwner(hasp.Owner{Raw: "redisson"}),
		"owner's long note":   hasp.WithOwner(hasp.Owner{Note: strings.Repeat("x", 1025)}),
	} {
		b := &spoiled{Backend: mustBackend(t, "mem://TestOptions")}
		if _, err := hasp.New(b, opt); err == nil {
			t.Errorf("%s: accepted", name)
		} else {
			wantErr(t, err, hasp.ErrInvalid)
		}
	}
	_, err := hasp.New(floor{mustBackend(t, "mem://TestOptions")}, hasp.WithTTL(time.Second))
	wantErr(t, err, hasp.ErrInvalid)
	if !strings.Contains(err.Error(), "1s") || !strings.Contains(err.Error(), "2s") {
		t.Errorf("the error does not name both durations: %v", err)
	}
}

// floor is a store with a shortest TTL, as etcd has one.
type floor struct{ driver.Backend }

func (f floor) Traits() driver.Traits {
	t := f.Backend.Traits()
	t.MinTTL = 2 * time.Second
	return t
}

func mustBackend(t *testing.T, s string) driver.Backend {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	b, err := driver.Lookup(u.Scheme)(t.Context(), u)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// O2: an error about a URL never shows a part of the password. The fuzzer builds the URLs that
// users really get wrong: a password without encoding.
func FuzzOpenHidesPassword(f *testing.F) {
	for _, pw := range []string{"hunter2secret", "p#ss-word", "p?ss=word", "p/ss:word", "p@ss%word", "%zz-secret", "[secret", "a b-secret", "\x7fsecret"} {
		f.Add("mem", pw, "host:6379/0?x=1")
		f.Add("redis", pw, "host")
		f.Add("", pw, "host?ttl=0")
	}
	f.Fuzz(func(t *testing.T, scheme, password, rest string) {
		if len(password) < 6 {
			return // too short to tell from words of the message
		}
		const user = "u"
		for _, part := range append(strings.FieldsFunc(password, func(r rune) bool { return strings.ContainsRune("/?#:@&=%[] ", r) }), password) {
			if len(part) >= 6 && strings.Contains(scheme+rest+"host"+user, part) {
				return // also stands elsewhere in the URL
			}
		}
		c, err := hasp.Open(context.Background(), fmt.Sprintf("%s://%s:%s@%s", scheme, user, password, rest))
		if err == nil {
			c.Close()
			return
		}
		for _, part := range append(strings.FieldsFunc(password, func(r rune) bool { return strings.ContainsRune("/?#:@&=%[] ", r) }), password) {
			if len(part) >= 6 && strings.Contains(err.Error(), part) && !strings.Contains(fixedWords, part) {
				t.Errorf("the error shows %q of the password: %v", part, err)
			}
		}
	})
}

// fixedWords are what the messages may say anyway.
var fixedWords = func() string {
	var words []string
	for _, u := range []string{"", "mem://%zz:%zz@x", "mem://x#y", "mem://x?a@b", "mem://x?%zz", "mem://x?ttl=0", "mem://x?margin=x", "mem://a:b@c", "mem://x?ttl=1ms"} {
		if _, err := hasp.Open(context.Background(), u); err != nil {
			words = append(words, err.Error())
		}
	}
	return strings.Join(words, "\n")
}()

func FuzzCheckName(f *testing.F) {
	f.Add("orders/42")
	f.Add("")
	f.Add("a\x00")
	f.Add(strings.Repeat("ü", 257))
	f.Fuzz(func(t *testing.T, name string) {
		valid := name != "" && len(name) <= 512 && strings.ToValidUTF8(name, "\x00") == name && !strings.Contains(name, "\x00")
		if got := driver.CheckName(name) == nil; got != valid {
			t.Errorf("CheckName(%q) accepted: %t", name, got)
		}
	})
}

// What is wrong with a client has no lock's name.
func TestNewNamesNoLock(t *testing.T) {
	_, err := hasp.New(memlock.New().Backend(), hasp.WithTTL(time.Nanosecond))
	if !errors.Is(err, hasp.ErrInvalid) || strings.Contains(err.Error(), `""`) || !strings.HasPrefix(err.Error(), "hasp: open mem://") {
		t.Errorf("%v", err)
	}
}
