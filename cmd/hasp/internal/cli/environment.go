package cli

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/hold"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/secrets"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/storeurl"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/internal/exit"
)

// holding is an element of HASP_HELD.
type holding struct {
	Store string `json:"store"` // as the store names itself, without credentials
	Name  string `json:"name"`
	ID    string `json:"id"`              // of the entry, as its client knows it
	Token uint64 `json:"token,omitempty"` // 0 where the store has none

	// Of hasp hold --background.
	pid           int // of the process that it is for; 0: the environment names the lock
	waits, shared bool
}

// is reports whether an entry of the name is the one that was held. Through hasp serve the store
// may have it by another id, which the server has chosen; its token stays, also when its session
// moves to another server.
func (h holding) is(e hasp.Entry) bool {
	return e.ID == h.ID || h.Token != 0 && e.Token == h.Token
}

// heldVariable has what hasp holds for the command and for its ancestors.
const heldVariable = "HASP_HELD"

func heldAbove(getenv func(string) string) []holding {
	var held []holding
	// A damaged variable is not an error: at worst it hides a deadlock.
	_ = json.Unmarshal([]byte(getenv(heldVariable)), &held)
	return held
}

// askAbove finds what is held for the command that has started hasp, and for its ancestors: by the
// environment, or by hasp hold --background, which may also wait for it. A holder that does not
// answer soon hides a deadlock, at worst.
func (a *app) askAbove() []holding {
	held := heldAbove(a.settings.Getenv)
	if a.holder != nil && a.holder.Background() { // it would ask itself, and has been told of the others
		return held
	}
	for _, socket := range hold.Above() {
		if s, err := hold.Look(socket); err == nil {
			held = append(held, beside(s)...)
		}
	}
	return held
}

// beside are the locks that a holder of hold --background has, or waits for, for one process alone.
func beside(s hold.State) (all []holding) {
	if s.State != "held" && s.State != "waiting" || s.Kind != "" && s.Kind != kindShared {
		return nil
	}
	for _, h := range alsoHeld(nil, s.Store, s.All()) {
		h.pid, h.waits, h.shared = s.PID, s.State == "waiting", s.Kind == kindShared
		all = append(all, h)
	}
	return all
}

// alsoHeld adds locks of a store.
func alsoHeld(held []holding, store string, locks []view.Lock) []holding {
	for _, l := range locks {
		held = append(held, holding{Store: store, Name: l.Name, ID: l.Holder, Token: l.Token})
	}
	return held
}

// checkNested refuses to wait for a lock that is held for the command that started hasp, or for one
// of its ancestors: that command would wait for hasp, and hasp for its lock. The environment says
// what may be held, and the store whether it still is: a daemon started under a lock that was
// released long ago must not be refused.
func (a *app) checkNested(ctx context.Context, c *hasp.Client, name string, shared bool) error {
	for _, h := range a.above() {
		if h.Name != name || h.Store != c.Store() || h.shared && shared { // readers meet a deadlock only through a writer
			continue
		}
		if h.waits {
			return exit.Misconfigured("%w: hasp hold --background waits for the lock %q for process %d, above this command, which would wait behind it; wait for that with hasp who --mine --wait, or give the place up: hasp release --mine",
				hasp.ErrDeadlock, view.Clean(name), h.pid)
		}
		q, err := c.Inspect(ctx, name)
		if err != nil {
			return err
		}
		switch {
		case !slices.ContainsFunc(q.Holders, h.is):
		case h.pid != 0:
			return exit.Misconfigured("%w: hasp hold --background holds the lock %q for process %d, above this command, which would wait for it; release it before: hasp release --mine",
				hasp.ErrDeadlock, view.Clean(name), h.pid)
		default:
			return exit.Misconfigured("%w: this command runs under the lock %q itself, and would wait for its own end; remove the inner hasp run or give it another name",
				hasp.ErrDeadlock, view.Clean(name))
		}
	}
	return nil
}

// commandEnv is the command's environment: the environment of hasp without credentials and
// settings, followed by the variables about its lock. They come last, so that a nested command sees
// its own lock and not the outer one.
//
// Settings are for this hasp alone. With HASP_NO_WAIT a nested run would give up a lock that its
// author meant it to wait for, and with HASP_NOTE it would name another command as the reason; hasp
// cannot tell which settings were meant for both. A setting that every user of a store needs (ttl,
// margin) can stand in the store's URL, which is passed on.
func (a *app) commandEnv(g *commandLease, c *hasp.Client, store *storeurl.URL, passCredentials, exclusive bool, r *reporter) []string {
	own := map[string]string{}
	for _, name := range a.settings.Variables() {
		own[name] = "" // removed
	}
	maps.Copy(own, a.lockVariables(g.locks(), g.numbered, expiry(g)))
	if g.slot >= 0 {
		own["HASP_SLOT"] = strconv.Itoa(g.slot)
	}
	own[storeurl.Variable] = store.String()
	held := heldAbove(a.settings.Getenv)
	if exclusive { // a second permit of a semaphore is not a mistake in itself
		held = alsoHeld(held, c.Store(), g.locks())
	}
	if b, err := json.Marshal(held); err == nil && held != nil {
		own[heldVariable] = string(b)
	}
	if !passCredentials {
		own[storeurl.Variable] = store.Public()
		for _, v := range secrets.Variables[store.Scheme()] {
			own[v] = ""
			if a.settings.Getenv(v) != "" {
				r.detail("%s is the store's, and not in the command's environment; --pass-credentials leaves it there", v)
			}
		}
	}
	return overlay(a.settings.Environ(), own)
}

// overlay replaces variables in env; those with an empty value are removed.
func overlay(env []string, own map[string]string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		key, _, _ := strings.Cut(kv, "=")
		_, replaced := own[key]
		return replaced
	})
	for _, key := range slices.Sorted(maps.Keys(own)) {
		if own[key] != "" {
			env = append(env, key+"="+own[key])
		}
	}
	return env
}
