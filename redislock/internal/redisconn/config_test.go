package redisconn

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/hasplock/hasp/driver"
)

func parse(t *testing.T, s string) (Config, error) {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	p := driver.NewParams(u.Query())
	cfg, err := Parse(u, p, Schemes[u.Scheme])
	if err == nil {
		err = p.Err()
	}
	return cfg, err
}

func TestParse(t *testing.T) {
	for s, want := range map[string]Config{
		"redis://":                            {Label: "redis://127.0.0.1:6379"},
		"redis://h":                           {Label: "redis://h:6379"},
		"redis://[::1]:7/3":                   {Label: "redis://[::1]:7/3", DB: 3},
		"valkey://a:1,b:2":                    {Label: "valkey://a:1,b:2"},
		"redis://:pass@h":                     {Label: "redis://h:6379", Secret: "pass"},
		"redis://ana:p%40ss@h":                {Label: "redis://h:6379", User: "ana", Secret: "p@ss"},
		"redis://h?sentinel=m&sentinel_user=": {Label: "redis://h:6379", Sentinel: "m"},
	} {
		got, err := parse(t, s)
		if err != nil || got.Label != want.Label || got.DB != want.DB || got.User != want.User ||
			got.Secret != want.Secret || got.Sentinel != want.Sentinel || got.TLS != nil {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
	}
	if cfg, err := parse(t, "redis://h?tls=true"); err != nil || cfg.TLS == nil {
		t.Errorf("tls=true: %+v, %v", cfg.TLS, err)
	}
	if cfg, err := parse(t, "rediss://h?servername=x"); err != nil || cfg.TLS == nil || cfg.TLS.ServerName != "x" {
		t.Errorf("rediss: %+v, %v", cfg.TLS, err)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, s := range []string{
		"redis://h:0", "redis://h:70000", "redis://h/x", "redis://h/-1", "redis://a:1,,b:2", "redis://secret@h",
		"redis://h?connect_timeout=0s", "redis://h?ca=/x", "rediss://h?ca=/nowhere", "rediss://h?cert=/x",
		"redis://h?sentinle=m", "redis:h", "rediss://h?tls=false",
	} {
		if _, err := parse(t, s); !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", s, err)
		}
	}
}
