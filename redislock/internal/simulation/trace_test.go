package simulation

import (
	"os"
	"testing"
)

// TestTrace prints what happens in the schedule of a file: SCHEDULE=x go test -v -run TestTrace
func TestTrace(t *testing.T) {
	file := os.Getenv("SCHEDULE")
	if file == "" {
		t.Skip("no SCHEDULE")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range scheduleOf(string(text)).run(t, newInterpreter(), nil, t.Logf) {
		t.Errorf("%s: %s", v.kind, v.text)
	}
}
