// Package testkit is the common part of the tests of several packages: waiting for events, clients
// and leases that end with their test, sessions below the core, and the output of examples that
// need a server. It knows no store.
//
// Every helper fails the test itself. A helper waits for [Patience]: a test that needs another
// bound measures the time itself.
//
// Tests of package hasp in the package itself cannot import it, since it imports hasp; those
// in hasp_test can. What only says which tests are long is in package testtier for that reason.
package testkit
