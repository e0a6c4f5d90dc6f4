package backends

import (
	"regexp"
	"strconv"
	"testing"
)

// Calls is how often the server has run commands whose names match, for any client.
func (r *Redis) Calls(t testing.TB, names string) (n int) {
	t.Helper()
	info, err := r.Do("INFO", "commandstats")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`cmdstat_(?:`+names+`):calls=(\d+)`).FindAllStringSubmatch(info, -1) {
		c, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		n += c
	}
	return n
}
