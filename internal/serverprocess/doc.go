// Package serverprocess runs a server as a child: on a free port of the loopback interface, with temporary data,
// killed, stopped, continued and started again at will, and removed in the end. It knows no server.
// internal/backends says how each is started for tests, and hasp-torture --local for its users.
//
// No server outlives the process that started it, even if that process is killed; see janitor_linux.go.
//
// All methods may be called from any goroutine. Linux only.
package serverprocess
