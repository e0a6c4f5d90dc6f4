package doctor_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/doctor"
)

// The first line that finds something wrong with a subject counts, and the last if none does.
func TestReport(t *testing.T) {
	r := doctor.Report{Server: "h:1"}
	for _, disk := range []int{0, 5, 50} {
		r.Found = nil
		r.When(disk == 0, driver.Bad, "disk", "full", "make room")
		r.When(disk < 10, driver.Warn, "disk", "nearly full", "make room")
		r.Else("disk", "has room")
		r.Else("net", "is there")
		var got []string
		for _, f := range r.Found {
			got = append(got, fmt.Sprint(f.Level, " ", f.Subject, " ", f.Text))
		}
		want := map[int]string{0: "bad disk h:1: full", 5: "warn disk h:1: nearly full", 50: "info disk h:1: has room"}[disk]
		if !slices.Equal(got, []string{want, "info net h:1: is there"}) {
			t.Errorf("%d: %q", disk, got)
		}
	}
}

func TestClock(t *testing.T) {
	for off, level := range map[time.Duration]driver.Level{0: driver.Info, time.Second: driver.Info, -6 * time.Second: driver.Warn, time.Hour: driver.Warn} {
		var r doctor.Report
		r.Clock(time.Now().Add(off), time.Now())
		if len(r.Found) != 1 || r.Found[0].Level != level || !strings.Contains(r.Found[0].Text, "differs from ours by") {
			t.Errorf("%s: %+v", off, r.Found)
		}
	}
}
