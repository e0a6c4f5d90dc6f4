// Package servepage_test looks at the page of hasp serve in a real browser, in front of a real
// Redis.
package servepage_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	_ "github.com/hasplock/hasp/redislock"
	"github.com/hasplock/hasp/tests/internal/browser"
	"github.com/hasplock/hasp/tests/internal/haspbin"
	"github.com/hasplock/hasp/tests/internal/haspserve"
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

// sees waits until an element's text contains the words.
func sees(t *testing.T, tab context.Context, selector, words string) {
	t.Helper()
	last := ""
	testkit.Until(t, fmt.Sprintf("%q in %s", words, selector), func() error {
		last = get[string](t, tab, fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ""`, selector))
		if !strings.Contains(last, words) {
			return fmt.Errorf("it is %q", last)
		}
		return nil
	})
}

// names are those of the rows in the document.
const names = `[...document.querySelectorAll("#rows a")].map((a) => a.textContent)`

func seesNames(t *testing.T, tab context.Context, want ...string) {
	t.Helper()
	testkit.Until(t, fmt.Sprintf("the names %q", want), func() error {
		if got := get[[]string](t, tab, names); fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("they are %q", got)
		}
		return nil
	})
}

func open(t *testing.T, s *haspserve.Server, width, height int) context.Context {
	t.Helper()
	tab := browser.Tab(t, width, height)
	do(t, tab, chromedp.Navigate("http://"+s.Addr+"/"))
	return tab
}

// click clicks a button by its words.
func click(t *testing.T, tab context.Context, words string) {
	t.Helper()
	script := fmt.Sprintf(`(() => { const b = [...document.querySelectorAll("button")].find((b) => b.textContent.includes(%q) && b.offsetParent); b?.click(); return Boolean(b); })()`, words)
	testkit.Eventually(t, "the button "+words, func() bool { return get[bool](t, tab, script) })
}

// choose opens a name. Not by a click at a place: rows move when names come, and another one is
// under the mouse then.
func choose(t *testing.T, tab context.Context, name string) {
	t.Helper()
	script := fmt.Sprintf(`(() => { const a = [...document.querySelectorAll("#rows a")].find((a) => a.textContent === %q); a?.click(); return Boolean(a); })()`, name)
	testkit.Eventually(t, "the row of "+name, func() bool { return get[bool](t, tab, script) })
	sees(t, tab, "#detail-name", name)
}

func lockWith(t *testing.T, c *hasp.Client, name string, o hasp.LockOption) *hasp.Lease {
	t.Helper()
	l, err := c.Mutex(name, o).Lock(testkit.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A lock is seen when it comes, when somebody waits, when its holder changes and when it goes. The
// text of owners and values is text.
func TestLive(t *testing.T) {
	testtier.Long(t)
	redis := backends.StartRedis(t, backends.RedisOptions{})
	tab := open(t, haspserve.New(t, redis.URL()), 1200, 800)
	sees(t, tab, "#count", "0 names")
	c := testkit.Client(t, redis.URL())
	bold := `<b onclick="alert(1)">deploy & co</b>`
	began := time.Now()
	l := lockWith(t, c, "deploy", hasp.Note(bold))
	seesNames(t, tab, "deploy")
	t.Logf("the lock was seen after %s", time.Since(began))
	sees(t, tab, "#rows .row", bold)
	next := make(chan *hasp.Lease, 1)
	go func() {
		waiting, _ := testkit.Client(t, redis.URL()).Mutex("deploy", hasp.Note("second")).Lock(testkit.Context(t))
		next <- waiting
	}()
	sees(t, tab, "#count", "1 waiting")
	do(t, tab, chromedp.Click(`#rows a`))
	sees(t, tab, "#detail", "Waiting (1)")
	sees(t, tab, "#detail", bold)
	testkit.Release(t, l)
	second := testkit.Await(t, "the second holder", next)
	if second == nil {
		t.Fatal("the second has no lock")
	}
	sees(t, tab, "#rows .row", "second")
	sees(t, tab, "#detail", "token "+fmt.Sprint(second.Token()))
	began = time.Now()
	testkit.Release(t, second)
	sees(t, tab, "#count", "0 names")
	t.Logf("its end was seen after %s", time.Since(began))
	sees(t, tab, "#detail", "It is free.")
	do(t, tab, chromedp.KeyEvent(kb.Escape))
	testkit.Eventually(t, "the name to be closed", func() bool { return get[bool](t, tab, `document.querySelector("#detail").hidden`) })
}

// The network to the server is silent and breaks no connection: the page does not say "Live" for
// long, and is again when the network is.
func TestSilentNetwork(t *testing.T) {
	testtier.Long(t)
	redis := backends.StartRedis(t, backends.RedisOptions{})
	s := haspserve.New(t, redis.URL())
	p, err := faultnet.New(t.Context(), s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	tab := browser.Tab(t, 1200, 800)
	do(t, tab, chromedp.Navigate("http://"+p.Addr()+"/"))
	sees(t, tab, "#state", "Live")
	time.Sleep(20 * time.Second) // the control: nothing happens in it
	if text := get[string](t, tab, `document.querySelector("#state").innerText`); text != "Live" {
		t.Errorf("in 20 idle seconds the page says %q", text)
	}
	p.Partition()
	began := time.Now()
	sees(t, tab, "#state", "Not connected")
	t.Logf("seen after %s", time.Since(began))
	p.Heal()
	sees(t, tab, "#state", "Live")
}

// An operator asks a holder that listens, and takes the lock from one that does not, with a reason
// and after a confirmation.
func TestAskAndEvict(t *testing.T) {
	testtier.Long(t)
	redis := backends.StartRedis(t, backends.RedisOptions{})
	c := testkit.Client(t, redis.URL())
	asked := make(chan hasp.Owner, 1)
	polite := lockWith(t, c, "polite", hasp.Revocable(0, func(by hasp.Owner) { asked <- by }))
	deaf := testkit.Lock(t, c, "deaf")
	tab := open(t, haspserve.New(t, redis.URL()), 1200, 800)
	say := func(reason string) {
		t.Helper()
		do(t, tab, chromedp.WaitVisible("#why"), chromedp.SendKeys("#why", reason), chromedp.Click("#yes"))
	}
	choose(t, tab, "polite")
	click(t, tab, "Ask the holder")
	say("maintenance at ten")
	if by := testkit.Await(t, "the request", asked); by.Asks != "maintenance at ten" || by.User != "everyone" {
		t.Errorf("asked by %+v", by)
	}
	testkit.Release(t, polite)
	sees(t, tab, "#state", "It was given up")

	choose(t, tab, "deaf")
	click(t, tab, "Take away")
	do(t, tab, chromedp.WaitVisible("#why"), chromedp.Click("#yes")) // a reason is required
	click(t, tab, "Cancel")
	if !deaf.Held() {
		t.Fatal("it was taken away without a reason")
	}
	click(t, tab, "Take away")
	say("it hangs")
	testkit.Await(t, "the loss", deaf.Context().Done())
	sees(t, tab, "#detail", "it hangs")
	e, err := c.LastEviction(testkit.Context(t), "deaf")
	if err != nil || e == nil || e.Why != "it hangs" || e.By.Program != "hasp serve" {
		t.Errorf("the record is %+v, %v", e, err)
	}
}

// Ten thousand names: the document has the rows in view, the filter finds one, and the arrow keys
// reach what is out of view.
func TestTenThousandNames(t *testing.T) {
	testtier.Long(t)
	redis := backends.StartRedis(t, backends.RedisOptions{})
	c := testkit.Client(t, redis.URL())
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			for n := i * 200; n < (i+1)*200; n++ {
				if _, err := c.Mutex(fmt.Sprintf("job-%05d", n)).TryLock(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	tab := open(t, haspserve.New(t, redis.URL()), 1200, 800)
	sees(t, tab, "#count", "10000 names")
	if n := get[int](t, tab, `document.querySelectorAll("#rows .row").length`); n > 100 {
		t.Errorf("the document has %d rows", n)
	}
	do(t, tab, chromedp.SendKeys("#filter", "b-07777"))
	seesNames(t, tab, "job-07777")
	get[any](t, tab, `document.querySelector("#filter").value = ""; document.querySelector("#filter").dispatchEvent(new Event("input")); null`)
	sees(t, tab, "#count", "10000 names")
	get[any](t, tab, `document.querySelector("#rows a").focus(); null`)
	for range 60 {
		do(t, tab, chromedp.KeyEvent(kb.ArrowDown))
	}
	if at := get[string](t, tab, `document.activeElement.textContent`); at != "job-00060" {
		t.Errorf("60 rows below the first is %q", at)
	}
	get[any](t, tab, `document.querySelector("#list").scrollTop = 1e9; null`)
	testkit.Eventually(t, "the last row", func() bool {
		in := get[[]string](t, tab, names)
		return in[len(in)-1] == "job-09999"
	})
	click(t, tab, "Name") // ascending; once more
	click(t, tab, "Name")
	get[any](t, tab, `document.querySelector("#list").scrollTop = 0; null`)
	testkit.Eventually(t, "the order", func() bool { return get[[]string](t, tab, names)[0] == "job-09999" })
	if _, err := c.Mutex("new-one").TryLock(t.Context()); err != nil {
		t.Fatal(err)
	}
	sees(t, tab, "#count", "10001 names")
}

// The server is killed, and the page says so; it is started anew, and the page is live again. The
// same with the store.
func TestOutages(t *testing.T) {
	testtier.Long(t)
	redis := backends.StartRedis(t, backends.RedisOptions{})
	net := testkit.Proxy(t, redis.Addr)
	s := haspserve.New(t, "redis://"+net.Addr())
	tab := open(t, s, 1200, 800)
	sees(t, tab, "#state", "Live")
	s.Kill()
	sees(t, tab, "#state", "Not connected")
	testkit.Lock(t, testkit.Client(t, redis.URL()), "meanwhile")
	s.Start()
	sees(t, tab, "#state", "Live")
	seesNames(t, tab, "meanwhile")
	net.Partition()
	sees(t, tab, "#state", "The store cannot be read")
	net.Heal()
	sees(t, tab, "#state", "Live")
}

// Two sessions wait for each other: the page draws the circle.
func TestDeadlock(t *testing.T) {
	testtier.Long(t)
	redis := backends.StartRedis(t, backends.RedisOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	var both sync.WaitGroup
	defer both.Wait()
	defer cancel()
	a, b := testkit.Client(t, redis.URL()), testkit.Client(t, redis.URL())
	ledger, stock := testkit.Lock(t, a, "ledger"), testkit.Lock(t, b, "stock")
	both.Go(func() { _, _ = a.Mutex("stock", hasp.Note("worker a")).Lock(ledger.Bind(ctx)) }) // until the test ends
	both.Go(func() { _, _ = b.Mutex("ledger", hasp.Note("worker b")).Lock(stock.Bind(ctx)) })
	tab := open(t, haspserve.New(t, redis.URL()), 1200, 800)
	sees(t, tab, "#alerts", "A deadlock")
	if text := get[string](t, tab, `document.querySelector("#alerts svg").getAttribute("aria-label")`); !strings.Contains(text, "waits for ledger") || !strings.Contains(text, "waits for stock") {
		t.Errorf("the drawing says %q", text)
	}
	browser.Screenshot(t, tab, "page-deadlock")
}

// With tokens a person signs in, and sees and does what the token may.
func TestRights(t *testing.T) {
	testtier.Long(t)
	redis := backends.StartRedis(t, backends.RedisOptions{})
	c := testkit.Client(t, redis.URL())
	app := testkit.Lock(t, c, "app/deploy")
	testkit.Lock(t, c, "secret")
	file, program := t.TempDir()+"/tokens", haspbin.Build(t)
	token := map[string]string{}
	for name, rights := range map[string]string{"viewer": "look", "operator": "look,lock,operate"} {
		out, err := exec.CommandContext(t.Context(), program, "serve", "token", name, "--rights", rights, "--prefix", "app/", "--tokens", file).Output()
		if err != nil {
			t.Fatal(err)
		}
		token[name] = strings.TrimSpace(string(out))
	}
	s := haspserve.New(t, redis.URL(), "--tokens", file)
	tab := open(t, s, 1200, 800)
	signIn := func(token, then string) {
		t.Helper()
		do(t, tab, chromedp.SendKeys("#token", token))
		click(t, tab, "Sign in")
		do(t, tab, chromedp.WaitVisible(then))
	}
	signIn("wrong", "#token")
	sees(t, tab, "main", "does not know the token")
	signIn(token["viewer"], "#rows a")
	seesNames(t, tab, "app/deploy")
	do(t, tab, chromedp.Click("#rows a"))
	sees(t, tab, "#detail", "Held by")
	if text := get[string](t, tab, `document.querySelector("#detail").innerText`); strings.Contains(text, "Take away") || strings.Contains(text, "Ask") {
		t.Errorf("a viewer is offered more than to look: %q", text)
	}
	evict := fmt.Sprintf(`fetch("/page/evict", {method: "POST", headers: {"Hasp-Page": "1"}, body: JSON.stringify({name: "app/deploy", entry: %q, why: "x"})}).then((r) => r.status)`, app.ID())
	wait := chromedp.Evaluate[int]
	if status, err := chromedp.Run(tab, wait(evict, chromedp.EvalAwaitPromise)); err != nil || status != 403 {
		t.Errorf("a viewer takes a lock away: status %d, %v", status, err)
	}
	if status, err := chromedp.Run(tab, wait(`fetch("/page/queue?name=secret").then((r) => r.status)`, chromedp.EvalAwaitPromise)); err != nil || status != 403 {
		t.Errorf("a viewer looks at another's lock: status %d, %v", status, err)
	}
	if get[bool](t, tab, `document.cookie.includes("hasp")`) {
		t.Error("scripts can read the token")
	}
	click(t, tab, "Sign out")
	do(t, tab, chromedp.WaitVisible("#token"))
	signIn(token["operator"], "#rows a")
	do(t, tab, chromedp.Click("#rows a"))
	click(t, tab, "Take away")
	do(t, tab, chromedp.WaitVisible("#why"), chromedp.SendKeys("#why", "by the operator"), chromedp.Click("#yes"))
	testkit.Await(t, "the loss", app.Context().Done())
}
