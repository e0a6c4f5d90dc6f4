package driver_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/hasplock/hasp/driver"
)

// A driver's Open takes the URLs of its schemes alone, and no error shows a part of a URL.
func TestOpenURL(t *testing.T) {
	opened := ""
	open := func(_ context.Context, u *url.URL) (driver.Backend, error) {
		opened = u.String()
		return nil, nil
	}
	driver.Register("urltest", open)
	driver.Register("urlother", open)
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
