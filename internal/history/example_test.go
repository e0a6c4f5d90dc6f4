package history_test

import (
	"fmt"

	"github.com/hasplock/hasp/internal/history"
)

// Two clients were given the same lock. The checks name the clients, their operations, and the
// times, counted from the first call.
func Example() {
	h := history.History{
		{
			ID: "a-1", Client: "a", Name: "orders/42", Claim: history.Exclusive(), Call: 10, Return: 20,
			Outcome: history.Granted, Token: 1, ReleaseCall: 90, ReleaseReturn: 95, Release: history.Released,
		},
		{
			ID: "b-1", Client: "b", Name: "orders/42", Claim: history.Exclusive(), Call: 30, Return: 40,
			Outcome: history.Granted, Token: 2, ReleaseCall: 50, ReleaseReturn: 60, Release: history.Released,
		},
	}
	for _, v := range history.Check(h, history.Options{Fencing: true, FIFO: true}) {
		fmt.Println(v)
	}
	// Output:
	// exclusion: "orders/42": held by 2 at once
	// 	a [a-1] exclusive token 1: called 0s, granted 10ns, release called 80ns, released 85ns
	// 	b [b-1] exclusive token 2: called 20ns, granted 30ns, release called 40ns, released 50ns
}
