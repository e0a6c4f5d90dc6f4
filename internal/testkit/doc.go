// Package testkit is what the tests of several packages have in common: waiting for what
// must come, clients and leases that end with their test, sessions below the core, and the
// output of examples that need a server. It knows no store.
//
// Every helper fails the test itself. What is awaited is awaited for [Patience]: a test that
// wants a bound of its own measures it.
//
// Tests of package hasp in the package itself cannot import it, since it imports hasp; those
// in hasp_test can. What only says which tests are long is in package testtier for that reason.
package testkit
