package driver_test

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
)

func params(t *testing.T, query string) *driver.Params {
	t.Helper()
	q, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	return driver.NewParams(q)
}

func TestParams(t *testing.T) {
	p := params(t, "s=text&b=true&i=7&d=1m30s&o=two&empty=")
	if got := p.String("s", "def"); got != "text" {
		t.Errorf("String: %q", got)
	}
	if got := p.String("empty", "def"); got != "" {
		t.Errorf("an empty parameter: %q", got)
	}
	if !p.Bool("b", false) {
		t.Error("Bool: false")
	}
	if got := p.Int("i", 1, 0, 10); got != 7 {
		t.Errorf("Int: %d", got)
	}
	if got := p.Duration("d", time.Second); got != 90*time.Second {
		t.Errorf("Duration: %s", got)
	}
	if got := driver.OneOf(p, "o", "one", "two"); got != "two" {
		t.Errorf("OneOf: %q", got)
	}
	if err := p.Err(); err != nil {
		t.Error(err)
	}
}

func TestParamsDefaults(t *testing.T) {
	p := params(t, "")
	if s, b, i, d, o := p.String("s", "def"), p.Bool("b", true), p.Int("i", 5, 6, 7), p.Duration("d", time.Second), driver.OneOf(p, "o", "one", "two"); s != "def" || !b || i != 5 || d != time.Second || o != "one" {
		t.Errorf("defaults: %q %t %d %s %q", s, b, i, d, o)
	}
	if p.Has("s") {
		t.Error("has what is not there")
	}
	if err := p.Err(); err != nil {
		t.Error(err)
	}
}

// Faults name the parameter and never its value, which may be a secret.
func TestParamsFaults(t *testing.T) {
	const secret = "hunter2"
	for name, c := range map[string]struct {
		query string
		read  func(*driver.Params)
		want  string
	}{
		"unknown":          {"known=1&pasword=" + secret, func(p *driver.Params) { p.Has("known") }, `unknown parameter "pasword" (known here: known; with every store: margin, ttl)`},
		"several unknown":  {"b=" + secret + "&a=1", func(p *driver.Params) {}, `unknown parameter "a", "b"`},
		"given twice":      {"s=" + secret + "&s=2", func(p *driver.Params) { p.String("s", "") }, `"s" is given more than once`},
		"no bool":          {"b=" + secret, func(p *driver.Params) { p.Bool("b", false) }, `"b" is not true or false`},
		"no number":        {"i=" + secret, func(p *driver.Params) { p.Int("i", 0, 0, 1) }, `"i" is not a whole number`},
		"too small":        {"i=-1", func(p *driver.Params) { p.Int("i", 0, 0, 1) }, `"i" must be from 0 to 1`},
		"too large":        {"i=2", func(p *driver.Params) { p.Int("i", 0, 0, 1) }, `"i" must be from 0 to 1`},
		"no duration":      {"d=10", func(p *driver.Params) { p.Duration("d", 0) }, `"d" is not a duration`},
		"no time":          {"d=0s", func(p *driver.Params) { p.Duration("d", 0) }, `"d" must be greater than zero`},
		"negative":         {"d=-1s", func(p *driver.Params) { p.Duration("d", 0) }, `"d" must be greater than zero`},
		"none of these":    {"o=" + secret, func(p *driver.Params) { driver.OneOf(p, "o", "one", "two") }, `"o" must be one of one, two`},
		"empty is a value": {"d=", func(p *driver.Params) { p.Duration("d", 0) }, `"d" is not a duration`},
	} {
		p := params(t, c.query)
		c.read(p)
		err := p.Err()
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %s", name, err, c.want)
			continue
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the value is in the message: %v", name, err)
		}
	}
}

// The first fault is reported, and none after it.
func TestParamsFirstFault(t *testing.T) {
	p := params(t, "i=x&d=y&z=1")
	p.Int("i", 0, 0, 1)
	p.Duration("d", 0)
	if err := p.Err(); err == nil || !strings.Contains(err.Error(), `"i"`) {
		t.Errorf("told: %v", err)
	}
}

// An & in a password makes a parameter of what is behind it, which is not shown.
func TestParamsHideWhatMayBeSecret(t *testing.T) {
	for _, key := range []string{"password", "sentinel_password"} {
		p := params(t, key+"=hun&ter2")
		p.String("sentinel_password", "")
		if err := p.Err(); !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "ter2") || !strings.Contains(err.Error(), "%26") {
			t.Error(err)
		}
	}
}
