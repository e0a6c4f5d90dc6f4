package doctor_test

import (
	"fmt"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/doctor"
)

// A store answers that it writes to disk once a second, and that it uses no TLS.
func Example() {
	synced, tls := "everysec", false

	var r doctor.Report
	r.When(synced == "no", driver.Bad, "durability", "nothing is written to disk", "set sync=always")
	r.When(synced == "everysec", driver.Warn, "durability", "a crash loses a second of grants", "set sync=always")
	r.Else("durability", "written to disk before each answer")
	r.When(!tls, driver.Warn, "tls", "the connection is not encrypted", "use TLS")
	r.Else("tls", "the connection is encrypted")
	for _, f := range r.Found {
		fmt.Printf("%s: %s; %s\n", f.Subject, f.Text, f.Cure)
	}
	// Output:
	// durability: a crash loses a second of grants; set sync=always
	// tls: the connection is not encrypted; use TLS
}
