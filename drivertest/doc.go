// Package drivertest is hasp's conformance suite, which a driver must pass before it is fit for
// use. It needs only a [Harness], so a driver outside of this repository is tested for the same
// promises as those inside:
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
// A run on a real server mostly waits: -parallel 8 shortens it. [CyclesEnv] lengthens the search
// for leaks.
//
// The suite follows driver.Traits, never the name of a store: it requires what a driver promises,
// and requires a clean refusal of what the driver does not promise. The comment of each test cites
// the promise that it checks (S1, L3, ... of docs/GUARANTEES.md, or an invariant of package
// driver).
//
// The checks of safety are exact: they use order, tokens and losses, never a clock, which a loaded
// machine could distort. Liveness has generous limits; only with Harness.FakeTime are the limits
// those of the promises.
//
// A test proves that the suite can fail: broken_test.go runs it against drivers with one flaw each.
package drivertest
