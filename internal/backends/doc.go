// Package backends starts real servers for tests and benchmarks: on free loopback
// ports, with temporary data, each killed, paused, restarted and removed at will.
//
//	r := backends.StartRedis(t, backends.RedisOptions{AppendOnly: true}) // this test's own
//	r.Kill(); r.Restart()                                                // same port, same data
//
//	shared := backends.SharedRedis(t) // one for all tests of this package's run
//
// # Missing servers
//
// A server that is not on the machine is installed, where that is possible without
// asking: as root on Debian. Otherwise the test skips with a line that says what to
// install, or fails if REQUIRE_BACKENDS=1. `make backends` installs everything at once,
// before the tests.
//
// # Whose server it is
//
// A Start function gives the test its own server, which it may kill or reconfigure; it ends with
// the test. A Shared function gives a server that all tests of the process use at the same time: it
// may not be killed, paused, flushed or reconfigured, and tests choose distinct names.
//
// No server outlives the process that started it, even if that process is killed; see internal/serverprocess.
//
// All methods may be called from any goroutine. Those that act on a process return its
// error rather than fail a test, because faults are injected outside the test's goroutine, too.
//
// Linux only: elsewhere every test skips.
package backends
