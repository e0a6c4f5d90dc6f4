package view_test

import (
	"encoding/json"
	"testing"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
)

// A name of another client that would turn a terminal's line around, or give it a command, is escaped
// in JSON as well, and is the same name to a program.
func TestJSONForATerminal(t *testing.T) {
	for name, want := range map[string]string{
		"deploy/web é 日本 \U0001F600": "{\"n\":\"deploy/web é 日本 \U0001F600\"}",
		"a\u202eb":                   `{"n":"a\u202eb"}`,
		"a\u009b31mb\x7f":            `{"n":"a\u009b31mb\u007f"}`,
		"a\U000e0001\u2028\u00a0":    `{"n":"a\udb40\udc01\u2028\u00a0"}`,
	} {
		text, err := view.JSON(map[string]string{"n": name})
		if err != nil || string(text) != want {
			t.Errorf("%q: %q, %v; want %q", name, text, err, want)
		}
		var back map[string]string
		if err := json.Unmarshal(text, &back); err != nil || back["n"] != name {
			t.Errorf("%q is read as %q, %v", name, back, err)
		}
	}
}
