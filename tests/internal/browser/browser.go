// Package browser shows pages in a real browser without a screen, Chromium, for tests. The tests say what
// a person does and sees there with package chromedp.
package browser

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/hasplock/hasp/internal/backends"
)

// bound is how long a test may use a tab: a page that never shows what is awaited fails the test
// before the whole package does.
const bound = 2 * time.Minute

// Tab starts a browser with one tab of the given size, in pixels of CSS. The context is for
// chromedp.Run and ends with the test. An exception of a script on the page fails the test.
func Tab(t testing.TB, width, height int) context.Context {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(backends.Chromium(t)), chromedp.WindowSize(width, height),
		chromedp.NoSandbox,                           // root, as whom CI runs, cannot have one
		chromedp.Flag("disable-dev-shm-usage", true), // containers have little of it
		chromedp.UserDataDir(t.TempDir()),
	)
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	ctx, _ = chromedp.NewExecAllocator(ctx, options...)
	ctx, closeTab := chromedp.NewContext(ctx)
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(int64(width), int64(height))); err != nil {
		cancel()
		t.Fatalf("start Chromium: %v", err)
	}
	exceptions, err := listen(ctx)
	t.Cleanup(func() {
		closeTab()
		cancel()
		for _, text := range exceptions() {
			t.Errorf("a script on the page failed: %s", text)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return ctx
}

func listen(ctx context.Context) (exceptions func() []string, err error) {
	var mu sync.Mutex
	var all []string
	err = chromedp.Listen(ctx, func(event any) {
		if e, ok := event.(*runtime.EventExceptionThrown); ok {
			mu.Lock()
			defer mu.Unlock()
			d := e.ExceptionDetails
			if d.Exception != nil {
				d.Text += " " + d.Exception.Description
			}
			all = append(all, fmt.Sprintf("%s (line %d)", d.Text, d.LineNumber+1))
		}
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return all
	}, err
}

// Screenshot writes what the tab shows to NAME.png in the directory that the variable
// HASP_SCREENSHOTS names, for a person to look at. It does nothing where there is none.
func Screenshot(t testing.TB, ctx context.Context, name string) {
	t.Helper()
	dir := os.Getenv("HASP_SCREENSHOTS")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644)
	}
	if err != nil {
		t.Errorf("screenshot %s: %v", name, err)
	}
}
