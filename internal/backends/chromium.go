package backends

import "testing"

// chromium is not among allTools: it is large, and only tests of the long tier look at pages.
var chromium = &tool{name: "chromium", debs: []string{"chromium", "fonts-dejavu-core"}, files: []string{"/usr/bin/chromium"}}

// Chromium returns the path of a browser that runs without a screen.
func Chromium(tb testing.TB) string {
	tb.Helper()
	need(tb, chromium)
	return chromium.path(0)
}
