package testkit

import "testing"

// Must returns a function that takes a call's results and returns the value; an error fails the
// test: v := Must[V](t)(call()). Two steps, because Go lets a call be the arguments of another only
// if there are no others.
func Must[V any](t testing.TB) func(V, error) V {
	return func(v V, err error) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
