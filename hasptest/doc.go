// Package hasptest is for tests of programs that lock: a store in memory that loses a lock,
// refuses, is slow or silent when the test says so.
//
//	func TestStopsAtALoss(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			store := hasptest.New()
//			done := make(chan error)
//			client := store.Client(t)
//			go func() { done <- program(t.Context(), client) }()
//			synctest.Wait() // until it works
//			store.Lose("orders/42")
//			if err := <-done; !errors.Is(err, hasp.ErrLost) {
//				t.Error(err)
//			}
//		})
//	}
//
// In a bubble of testing/synctest, TTLs and outages of hours pass at once, and synctest.Wait says
// when the program has done all that it can do. It is not needed otherwise. The examples have one
// test for each fault. What works under these faults works the same on every store, but for what
// docs/GUARANTEES.md tells of each.
//
//	to test                                        use
//	a lock that is lost, an eviction               Lose, or Client.Evict
//	an outage: a loss by time, a release that is   Cut
//	  not confirmed, a lock that cannot be had
//	a store that has forgotten everything          Forget
//	a full disk, a missing permission              Refuse
//	a slow network                                 Delay
//	a lock that is taken                           another Client of the store
package hasptest
