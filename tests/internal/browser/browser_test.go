package browser_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/tests/internal/browser"
)

func TestTab(t *testing.T) {
	testtier.Long(t)
	dir := t.TempDir()
	page := filepath.Join(dir, "page.html")
	if err := os.WriteFile(page, []byte(`<h1 id=h></h1><script>document.getElementById("h").textContent = innerWidth</script>`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HASP_SCREENSHOTS", dir)
	tab := browser.Tab(t, 400, 300)
	if err := chromedp.Do(tab, chromedp.Navigate("file://"+page)); err != nil {
		t.Fatal(err)
	}
	text, err := chromedp.Run(tab, chromedp.Text("#h"))
	if err != nil {
		t.Fatal(err)
	}
	if text != "400" {
		t.Errorf("the page is %s wide, want 400", text)
	}
	browser.Screenshot(t, tab, "shot")
	if png, err := os.ReadFile(filepath.Join(dir, "shot.png")); err != nil || len(png) < 100 {
		t.Errorf("no screenshot: %d bytes, %v", len(png), err)
	}
}

// failing takes the errors of a test that is to fail.
type failing struct {
	testing.TB
	errors   int
	cleanups []func()
}

func (f *failing) Errorf(string, ...any) { f.errors++ }
func (f *failing) Cleanup(end func())    { f.cleanups = append(f.cleanups, end) }

func TestTabSeesExceptions(t *testing.T) {
	testtier.Long(t)
	f := &failing{TB: t}
	tab := browser.Tab(f, 400, 300)
	if err := chromedp.Do(tab, chromedp.Navigate(`data:text/html,<script>nothing.there()</script><p id=p>seen`), chromedp.WaitVisible("#p")); err != nil {
		t.Fatal(err)
	}
	for _, end := range f.cleanups {
		end()
	}
	if f.errors != 1 {
		t.Errorf("the exception on the page failed the test %d times, want 1", f.errors)
	}
}
