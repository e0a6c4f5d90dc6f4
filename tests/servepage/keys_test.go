package servepage_test

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/tests/internal/browser"
	"github.com/hasplock/hasp/tests/internal/haspserve"
)

// The keyboard acts on what it is seen to act on: Enter leaves the focus in the name that it opens,
// also when that is drawn again, and a row that leaves the view takes no other name's place.
func TestFocus(t *testing.T) {
	testtier.Long(t)
	redis := backends.StartRedis(t, backends.RedisOptions{})
	c := testkit.Client(t, redis.URL())
	for n := range 200 {
		testkit.Lock(t, c, fmt.Sprintf("job-%03d", n))
	}
	tab := open(t, haspserve.New(t, redis.URL()), 1100, 700)
	sees(t, tab, "#count", "200 names")
	browser.Screenshot(t, tab, "headings-1100")
	if cut := get[[]string](t, tab, `[...document.querySelectorAll(".head button")].filter((b) => b.scrollWidth > b.clientWidth + 1 || b.parentElement.scrollWidth > b.parentElement.clientWidth + 1).map((b) => b.textContent)`); len(cut) > 0 {
		t.Errorf("cut headings: %q", cut)
	}
	if cut := get[[]string](t, tab, `[...document.querySelectorAll("#rows .row > :nth-child(4)")].filter((c) => c.scrollWidth > c.clientWidth).map((c) => c.textContent)`); len(cut) > 0 {
		t.Errorf("tokens without all digits: %q", cut)
	}
	// Where there is no room for all digits, the last ones are seen, by which tokens differ.
	narrow := open(t, haspserve.New(t, redis.URL()), 800, 700)
	sees(t, narrow, "#count", "200 names")
	browser.Screenshot(t, narrow, "tokens-800")
	last := `(() => { const c = document.querySelector("#rows .row > :nth-child(4)"), r = document.createRange(), n = c.firstChild.length;
  r.setStart(c.firstChild, n - 1); r.setEnd(c.firstChild, n); const d = r.getBoundingClientRect(), box = c.getBoundingClientRect();
  return c.scrollWidth > c.clientWidth && d.left >= box.left && d.right <= box.right + 1; })()`
	if !get[bool](t, narrow, last) {
		t.Error("the last digit of a token is cut")
	}
	if get[bool](t, narrow, `document.querySelectorAll("#rows .row > :nth-child(4)").forEach((c) => c.style.direction = "ltr"), `+last) {
		t.Error("the control: a token that is cut at its end seems to show its last digit")
	}
	get[any](t, tab, `document.querySelector("#rows a").focus(); null`)
	do(t, tab, chromedp.KeyEvent(kb.Enter))
	sees(t, tab, "#detail", "Held by")
	get[any](t, tab, `readDetail().then(() => null)`)
	if at := get[string](t, tab, `document.activeElement.id`); at != "detail-name" {
		t.Errorf("after Enter the focus is in %q", at)
	}
	do(t, tab, chromedp.KeyEvent(kb.Escape))
	get[any](t, tab, `document.querySelector("#rows a").focus(); null`)
	get[any](t, tab, `document.querySelector("#list").scrollTop = 3000; draw(); null`)
	do(t, tab, chromedp.KeyEvent(kb.Enter))
	sees(t, tab, "#detail-name", "job-000")
	do(t, tab, chromedp.KeyEvent(kb.Escape))
}

// A link that is no name's address breaks nothing, and a token keeps all its digits.
func TestOddAddressAndToken(t *testing.T) {
	testtier.Long(t)
	redis := backends.StartRedis(t, backends.RedisOptions{})
	tab := open(t, haspserve.New(t, redis.URL()), 1200, 800)
	get[any](t, tab, `location.hash = "#%"; null`)
	sees(t, tab, "#detail-name", "%")
	const token = "18446744073709551615"
	if got := get[string](t, tab, `String(parse('{"holders":[{"token":`+token+`,"value":"\\"token\\":5"}]}').holders[0].token)`); got != token {
		t.Errorf("token %s is shown as %s", token, got)
	}
}

// Words are as dark as they must be to be read, beside what is drawn behind them.
func TestContrast(t *testing.T) {
	testtier.Long(t)
	redis := backends.StartRedis(t, backends.RedisOptions{})
	for _, scheme := range []string{"light", "dark"} {
		tab := browser.Tab(t, 1200, 800)
		do(t, tab, emulated(scheme), chromedp.Navigate("http://"+haspserve.New(t, redis.URL()).Addr+"/"))
		ratio := get[float64](t, tab, `(() => {
  const part = (v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (name) => { const c = document.createElement("i"); c.style.color = getComputedStyle(document.documentElement).getPropertyValue(name); document.body.append(c);
    const [r, g, b] = getComputedStyle(c).color.match(/\d+/g).map(Number); c.remove(); return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b); };
  let least = 99;
  for (const word of ["--ink", "--soft", "--wait", "--bad", "--link"]) for (const ground of ["--card", "--bg", "--warn"]) {
    if (ground === "--warn" && word !== "--ink") continue;
    const a = light(word), b = light(ground); least = Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return least; })()`)
		if ratio < 4.5 {
			t.Errorf("%s: the least contrast is %.2f", scheme, ratio)
		}
	}
}
