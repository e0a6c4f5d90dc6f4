package httplock_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/httplock"
)

// A URL that is wrong is refused before anything is sent, and without a word of what may be a
// secret.
func TestRefusedURLs(t *testing.T) {
	const secret = "sEcReT"
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for url, says := range map[string]string{
		"hasp+http://192.0.2.1/path":                                "no path",
		"hasp+http:///":                                             "names no host",
		"hasp+http:opaque":                                          "has a host",
		"hasp+http://user:" + secret + "@127.0.0.1":                 "no password",
		"hasp+http://" + secret + "@192.0.2.1":                      "over TLS",
		"hasp+http://192.0.2.1?token_file=" + token:                 "over TLS",
		"hasp+https://" + secret + "@192.0.2.1?token_file=" + token: "not in both",
		"hasp+https://192.0.2.1?token_file=none":                    "token_file",
		"hasp+https://192.0.2.1?tls=false":                          "hasp+http",
		"hasp+http://192.0.2.1?tls=true":                            "hasp+https",
		"hasp+http://192.0.2.1?ca=" + token:                         "ca",
		"hasp+https://192.0.2.1?prefix=" + secret:                   `"prefix"`,
		"hasp+https://192.0.2.1?cert=" + token:                      "belong together",
		"http://127.0.0.1:7070":                                     "begins with",
	} {
		_, err := httplock.Open(t.Context(), url)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v, want %q", url, err, says)
		}
	}
	for _, address := range []string{"127.0.0.1:7070", "ftp://127.0.0.1", "http://", "http://127.0.0.1/path", "http://u@127.0.0.1", "http://127.0.0.1?x=y"} {
		if _, err := httplock.New(t.Context(), address, nil); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v", address, err)
		}
	}
	// The control: a good one is sent, and there is no answer.
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := httplock.Open(ended, "hasp+https://"+secret+"@192.0.2.1"); !errors.Is(err, context.Canceled) {
		t.Errorf("a good URL: %v", err)
	}
}
