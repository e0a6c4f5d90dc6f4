// Package testtier says which tests belong to the long tier: those that make test leaves
// out and make test-all runs. It imports package testing alone, so that every package's
// tests can import it, those inside package hasp too.
package testtier

import "testing"

// Long skips the test under go test -short. Call it first in what takes long for the sake
// of thoroughness: another topology, another client library, a random run. What is the
// only test of a promise is not long, however slow.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("long: runs in make test-all")
	}
}
