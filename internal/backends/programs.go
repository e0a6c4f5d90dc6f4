package backends

import "testing"

// Programs that a few tests of the long tier need. They are not among allTools: make backends installs what
// most need.
var (
	chromium = &tool{name: "chromium", debs: []string{"chromium", "fonts-dejavu-core"}, files: []string{"/usr/bin/chromium"}}
	nginx    = &tool{name: "nginx", debs: []string{"nginx-light"}, files: []string{"/usr/sbin/nginx"}}
	haproxy  = &tool{name: "haproxy", debs: []string{"haproxy"}, files: []string{"/usr/sbin/haproxy"}}
	npm      = &tool{name: "npm", debs: []string{"nodejs", "npm"}, files: []string{"/usr/bin/npm", "/usr/bin/node"}}
	pypy     = &tool{name: "pypy with venv", debs: []string{"pypy3", "pypy3-venv"}, files: []string{"/usr/bin/pypy3", "/usr/lib/pypy3*/ensurepip/__init__.py"}}
	python   = &tool{name: "python with venv", debs: []string{"python3", "python3-venv"}, files: []string{"/usr/bin/python3", "/usr/lib/python3.*/ensurepip/__init__.py"}}
)

// Chromium returns the path of a browser that runs without a screen.
func Chromium(tb testing.TB) string {
	tb.Helper()
	need(tb, chromium)
	return chromium.path(0)
}

// Nginx returns the path of a reverse proxy. Debian's package starts one at port 80, which is not used.
func Nginx(tb testing.TB) string {
	tb.Helper()
	need(tb, nginx)
	return nginx.path(0)
}

// HAProxy returns the path of a reverse proxy that speaks HTTP/2 to its servers.
func HAProxy(tb testing.TB) string {
	tb.Helper()
	need(tb, haproxy)
	return haproxy.path(0)
}

// NPM returns the path of Node's package manager; node is in PATH then.
func NPM(tb testing.TB) string {
	tb.Helper()
	need(tb, npm)
	return npm.path(0)
}

// Python returns the path of a Python that can make environments.
func Python(tb testing.TB) string {
	tb.Helper()
	need(tb, python)
	return python.path(0)
}

// PyPy returns the path of another runtime of Python, which has the language of version 3.9.
func PyPy(tb testing.TB) string {
	tb.Helper()
	need(tb, pypy)
	return pypy.path(0)
}
