// Package torturereport_test looks at the page of hasp-torture --html in a real browser.
package torturereport_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/tests/internal/browser"
	"github.com/hasplock/hasp/tests/internal/haspbin"
)

func get[T any](t *testing.T, tab context.Context, script string) T {
	t.Helper()
	v, err := chromedp.Run(tab, chromedp.Evaluate[T](script))
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return v
}

func do(t *testing.T, tab context.Context, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(tab, steps...); err != nil {
		t.Fatal(err)
	}
}

// A real run, and its page: the verdict, a timeline with bars for each name, the control's
// overlaps, at which the button arrives, and the numbers. It fits a narrow window, and asks for
// nothing from a network.
func TestReport(t *testing.T) {
	testtier.Long(t)
	page := filepath.Join(t.TempDir(), "report.html")
	c := exec.CommandContext(t.Context(), haspbin.BuildTorture(t), backends.SharedRedis(t).URL(), "--for", "20s", "--seed", "5", "--html", page)
	out, err := c.CombinedOutput()
	verdict := "held"
	if c.ProcessState != nil && c.ProcessState.ExitCode() == 77 { // a busy machine: the page is there all the same
		verdict, err = "inconclusive", nil
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, size := range []struct {
		name          string
		width, height int
	}{{"report-wide", 1200, 1000}, {"report-narrow", 400, 900}} {
		t.Run(size.name, func(t *testing.T) {
			tab := browser.Tab(t, size.width, size.height)
			do(t, tab, chromedp.Navigate("file://"+page), chromedp.WaitVisible("#names canvas"))
			if got := get[string](t, tab, `document.getElementById("result").textContent`); got != verdict {
				t.Errorf("the verdict is %q, want %q", got, verdict)
			}
			if n := get[int](t, tab, `document.querySelectorAll("#names canvas").length`); n != 4 {
				t.Errorf("%d timelines, want three and the control's", n)
			}
			if n := get[int](t, tab, `[...document.querySelectorAll("#names canvas")].filter(painted).length; function painted(c) { return c.getContext("2d").getImageData(0, 0, c.width, c.height).data.some(v => v > 0) }`); n != 4 {
				t.Errorf("%d timelines have anything drawn", n)
			}
			if wide := get[int](t, tab, `document.documentElement.scrollWidth`); wide > size.width {
				t.Errorf("the page is %d wide in a window of %d", wide, size.width)
			}
			if n := get[int](t, tab, `performance.getEntriesByType("resource").length`); n != 0 {
				t.Errorf("the page has loaded %d other things", n)
			}
			if got := get[string](t, tab, `document.querySelector("tbody").innerText`); !strings.Contains(got, "lost updates") {
				t.Errorf("the numbers are %q", got)
			}
			browser.Screenshot(t, tab, size.name)
			if verdict == "held" {
				do(t, tab, chromedp.Click(`[data-next=control]`))
				if got := get[string](t, tab, `told.textContent`); !strings.Contains(got, "Overlap: process") {
					t.Errorf("at the control's overlap it says %q", got)
				}
				if got := get[float64](t, tab, `to - from`); got >= 2e7 || got < 1000 {
					t.Errorf("%g us are shown: it has not zoomed", got)
				}
				do(t, tab, chromedp.ScrollIntoView("canvas[data-name='3']"))
				browser.Screenshot(t, tab, size.name+"-overlap")
			}
			do(t, tab, chromedp.Focus("canvas"), chromedp.KeyEvent("0"))
			if got := get[float64](t, tab, `to - from`); got != 2e7 {
				t.Errorf("all are %g us, want 20 s", got)
			}
			do(t, tab, chromedp.KeyEvent("+"))
			if got := get[float64](t, tab, `to - from`); got != 1e7 {
				t.Errorf("zoomed in, %g us are shown, want 10 s", got)
			}
		})
	}
}
