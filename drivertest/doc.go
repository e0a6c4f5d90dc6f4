// Package drivertest is hasp's conformance suite: what a driver must pass before it may
// carry locks. It needs nothing but a [Harness], so a driver outside of this repository
// is held to the same promises as those inside:
//
//	func TestMain(m *testing.M) { drivertest.Main(m) }
//
//	func TestConformance(t *testing.T) {
//		drivertest.Run(t, drivertest.Harness{
//			Open: func(t testing.TB) driver.Backend {
//				b, err := mylock.Open(t.Context(), addr)
//				if err != nil {
//					t.Fatal(err)
//				}
//				return b
//			},
//			URL: "my://" + addr, // other processes open the store by this
//			TTL: time.Second,
//		})
//	}
//
// Most of a run on a real server is spent waiting: -parallel 8 shortens it. [CyclesEnv]
// lengthens the search for leaks.
//
// The suite goes by driver.Traits, never by the name of a store: what a driver promises
// is demanded, and what it does not promise it must refuse cleanly. The comment of each
// test cites the promise it holds the driver to (S1, L3, ... of docs/GUARANTEES.md, or an
// invariant of package driver).
//
// Safety is judged exactly: by order, by tokens, by what was lost, never by a clock that a
// loaded machine could upset. Liveness has generous limits; only with Harness.FakeTime are
// the limits those of the promises.
//
// That the suite can fail is itself tested: broken_test.go runs it against drivers that
// are wrong in one way each.
package drivertest
