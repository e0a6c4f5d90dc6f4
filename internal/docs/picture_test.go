package docs

import (
	"flag"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/memlock"
)

var update = flag.Bool("update", false, "write docs/img/lease.svg")

// The file has what leasePicture draws. After a change: go test ./internal/docs -update
func TestPicture(t *testing.T) {
	const path = "docs/img/lease.svg"
	if *update {
		if err := os.WriteFile("../../"+path, []byte(leasePicture()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, path) != leasePicture() {
		t.Errorf("%s is not what picture.go draws: go test ./internal/docs -update", path)
	}
}

// The numbers of the picture and of docs/LEASE.md are those of the code, in fake time.
func TestPictureNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := hasp.New(memlock.New().Backend())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		lease, err := c.Mutex("a").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		trust := time.Duration(trustEnds * float64(time.Second))
		if left := time.Until(lease.Deadline()); left != trust {
			t.Errorf("trust ends after %s; picture.go and docs/LEASE.md say %s", left, trust)
		}
	})
}
