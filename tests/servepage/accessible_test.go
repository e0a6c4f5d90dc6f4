package servepage_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/tests/internal/browser"
	"github.com/hasplock/hasp/tests/internal/haspserve"
)

// axe is axe-core (https://github.com/dequelabs/axe-core), which finds what keeps people with
// disabilities from using a page.
func axe(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	c := exec.CommandContext(t.Context(), backends.NPM(t), "install", "--no-audit", "--no-fund", "--ignore-scripts", "axe-core@4.14.1")
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("npm: %v\n%s", err, out)
	}
	b, err := os.ReadFile(filepath.Join(dir, "node_modules", "axe-core", "axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// barriers are the serious findings of axe about what the tab shows.
func barriers(t *testing.T, tab context.Context, axe string) []string {
	t.Helper()
	get[any](t, tab, axe+"; null")
	text, err := chromedp.Run(tab, chromedp.Evaluate[string](`axe.run().then((r) => JSON.stringify(r.violations.filter((v) => v.impact === "serious" || v.impact === "critical")
		.map((v) => v.id + ": " + v.help + ": " + v.nodes.map((n) => n.html.slice(0, 200)).join(" | "))))`, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// The page in all its states, at two sizes, light and dark: axe finds nothing serious, and nothing
// is wider than the window. The control is a page without labels, in which axe finds something.
func TestAccessible(t *testing.T) {
	testtier.Long(t)
	axe := axe(t)
	redis := backends.StartRedis(t, backends.RedisOptions{})
	s := haspserve.New(t, redis.URL())
	c := testkit.Client(t, redis.URL(), hasp.WithOwner(hasp.Owner{User: "ana", Host: "web-3", PID: 4121, Program: "deploy"}))
	for i := range 30 {
		lockWith(t, c, fmt.Sprintf("warehouse/shelf-%02d", i), hasp.Note("counts the shelf"))
	}
	waits(t, redis.URL())
	for _, look := range []struct {
		name          string
		width, height int
		scheme        string
	}{{"page-wide", 1200, 800, "light"}, {"page-narrow", 400, 800, "dark"}} {
		t.Run(look.name, func(t *testing.T) {
			tab := browser.Tab(t, look.width, look.height)
			check := func(state string) {
				t.Helper()
				for _, b := range barriers(t, tab, axe) {
					t.Errorf("%s: %s", state, b)
				}
				if wide := get[int](t, tab, `document.documentElement.scrollWidth`); wide > look.width {
					t.Errorf("%s: the page is %d wide", state, wide)
				}
				browser.Screenshot(t, tab, look.name+"-"+state)
			}
			do(t, tab, emulated(look.scheme), chromedp.Navigate("http://"+s.Addr+"/"))
			sees(t, tab, "#count", "3 waiting")
			check("list")
			choose(t, tab, "warehouse/shelf-00")
			sees(t, tab, "#detail", "Waiting (3)")
			check("name")
			click(t, tab, "Take away")
			do(t, tab, chromedp.WaitVisible("#why"))
			check("confirm")
		})
	}
	tab := browser.Tab(t, 400, 400)
	do(t, tab, chromedp.Navigate(`data:text/html,<title>x</title><input><img src="data:,">`))
	if found := barriers(t, tab, axe); len(found) == 0 || !strings.Contains(strings.Join(found, " "), "label") {
		t.Errorf("axe finds %q in a page without labels: it would find nothing anywhere", found)
	}
}

func emulated(scheme string) chromedp.Action[chromedp.Void] {
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features})
		return err
	})
}

// waits has three clients wait for the first shelf.
func waits(t *testing.T, url string) {
	for i := range 3 {
		go func() {
			c := testkit.Client(t, url, hasp.WithOwner(hasp.Owner{User: "ben", Host: fmt.Sprintf("till-%d", i), PID: 77 + i, Program: "checkout"}))
			_, _ = c.Mutex("warehouse/shelf-00").Lock(t.Context()) // until the test ends
		}()
	}
}
