package driver_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/hasplock/hasp/driver"
)

var opened string

// A scheme is registered once in a process, however often the test runs.
func init() {
	open := func(_ context.Context, u *url.URL) (driver.Backend, error) {
		opened = u.String()
		return nil, nil
	}
	driver.Register("urltest", open)
	driver.Register("urlother", open)
	driver.Register("urlhosts", func(context.Context, *url.URL) (driver.Backend, error) { return nil, nil })
}

// A driver's Open takes the URLs of its schemes alone, and no error shows a part of a URL.
func TestOpenURL(t *testing.T) {
	if _, err := driver.Open(t.Context(), "urltest://u:p@h/x?a=b", "urltest"); err != nil || opened != "urltest://u:p@h/x?a=b" {
		t.Errorf("opened %q, %v", opened, err)
	}
	if _, err := driver.Open(t.Context(), "urlother://h"); err != nil || opened != "urlother://h" {
		t.Errorf("any scheme: opened %q, %v", opened, err)
	}
	opened = ""
	for what, storeURL := range map[string]string{
		"another's scheme": "urlother://secret@h", "no such scheme": "urlnone://secret", "none": "secret", "malformed": "urltest://secret%zz",
		"a fragment": "urltest://u:se#cret@h", "an at sign": "urltest://u:se?cret@h", "the query": "urltest://h?secret=%zz",
	} {
		_, err := driver.Open(t.Context(), storeURL, "urltest")
		if !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "cret") || opened != "" {
			t.Errorf("%s: opened %q, %v", what, opened, err)
		}
	}
	var none context.Context
	if _, err := driver.Open(none, "urltest://h"); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("no context: %v", err)
	}
}

// Lists of hosts, as a URL has them and as a dial wants them.
func TestHosts(t *testing.T) {
	for hosts, want := range map[string]string{
		"h": "h:1", "h:2": "h:2", "a,b:2,c": "a:1 b:2 c:1", "10.0.0.1,h": "10.0.0.1:1 h:1",
		"[::1]": "[::1]:1", "[::1]:2": "[::1]:2", "[::1]:2,[::2],[fe80::1%25lo]:3,h": "[::1]:2 [::2]:1 [fe80::1%lo]:3 h:1",
		"": "error: no host", ",h": "error: missing", "a,,b": "error: missing", "a,": "error: missing", ":2": "error: missing",
		"a, b": "error: blank", "a ,b": "error: blank", "a%20": "error: blank", "a,\u00a0b": "error: blank",
		"h:x": "error: port", "h:0": "error: port", "h:65536": "error: port", "h:": "error: port", "a:1:2": "error: brackets",
		"::1": "error: brackets", "::1:6379,h": "error: brackets", "[::1": "error: brackets", "[h]": "error: brackets", "[10.0.0.1]": "error: brackets",
		"%2Fsocket": "error: '/'", "h%zz": "error: '%'",
	} {
		for _, before := range []string{"urlhosts://", "urlhosts://u:secret@"} {
			u, err := driver.ParseURL(before+hosts+"/path?a=b", "urlhosts")
			var got []string
			if err == nil {
				got, err = driver.Hosts(u.Host, "1")
			}
			if message, refused := strings.CutPrefix(want, "error: "); refused {
				if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), message) || strings.Contains(err.Error(), "secret") {
					t.Errorf("%s%s: %v, %v; want %s", before, hosts, got, err, want)
				}
				continue
			}
			if err != nil || strings.Join(got, " ") != want {
				t.Errorf("%s%s: %v, %v; want %s", before, hosts, got, err, want)
				continue
			}
			again, err := driver.SplitURL(u.String())
			if err != nil || again.Host != u.Host || again.Path != "/path" || again.RawQuery != "a=b" || again.User.String() != u.User.String() {
				t.Errorf("%s%s: written again it is %s, %v", before, hosts, u, err)
			}
		}
	}
}
