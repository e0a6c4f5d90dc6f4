package redisfence

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/rueidis"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/fencing"
)

// Client runs scripts. Its methods may be called at once from many goroutines.
type Client interface {
	// Eval runs a script at most once and returns its answer: nil, an int64, a string or a []any of
	// these. It may send the script's hash first (EVALSHA). An error that comes from the network
	// leaves the outcome unknown and is returned as it is.
	Eval(ctx context.Context, script string, keys, args []string) (any, error)
}

// Options are the settings of a Writer. nil or the zero value means the defaults.
type Options struct {
	// Fence is the key that keeps the greatest token. It belongs to one lock name. Default:
	// hasp:fence:{NAME}, with NAME escaped where it is not a-z, 0-9, '-', '_' or '.'; that is
	// also the hash tag which keys need in a cluster.
	Fence string
}

// Command is a Redis command with its arguments: {"SET", "key", "value"}.
type Command []string

// Writer writes under one token. Its methods may be called at once from many goroutines.
type Writer struct {
	client Client
	fence  string
	name   string
	token  uint64
}

// maxEncoded keeps names of a usual length readable; longer ones are hashed.
const maxEncoded = 512

// With makes the fence refuse every token smaller than the lease's from now on, and returns the
// Writer of this token. It returns a *fencing.StaleError if the fence has seen a greater token.
// After any other error the fence may have advanced: call With again with the same lease, or give
// the lease up.
func With(ctx context.Context, c Client, lease fencing.Grant, o *Options) (*Writer, error) {
	w := &Writer{client: c, name: lease.Name(), token: lease.Token()}
	if err := fencing.Check(w.name, w.token); err != nil {
		return nil, err
	}
	if o != nil {
		w.fence = o.Fence
	}
	if w.fence == "" {
		encoded, _ := driver.EncodeName(w.name, maxEncoded)
		w.fence = "hasp:fence:{" + encoded + "}"
	}
	if _, err := w.run(ctx, advance, nil, nil); err != nil {
		return nil, err
	}
	return w, nil
}

// Fence returns the key that keeps the greatest token.
func (w *Writer) Fence() string { return w.fence }

// Do runs commands in order, all in one script, unless the fence has seen a greater token: then it
// returns a *fencing.StaleError and none runs. It returns a result for each: nil, an int64, a
// string or a []any. If one fails, the ones before it have taken effect, and the ones after it have
// not.
//
// In a cluster the first argument of each command must be its key; for commands with more keys use
// Eval, which takes the keys.
func (w *Writer) Do(ctx context.Context, cmds ...Command) ([]any, error) {
	keys := make([]string, 0, len(cmds))
	var args []string
	for _, c := range cmds {
		if len(c) < 2 || c[0] == "" {
			return nil, fmt.Errorf("%w: a command is its name and at least a key, not %q", fencing.ErrInvalid, []string(c))
		}
		keys = append(keys, c[1])
		args = append(append(args, strconv.Itoa(len(c))), c...)
	}
	result, err := w.run(ctx, commands, keys, args)
	if err != nil {
		return nil, err
	}
	results, ok := result.([]any)
	if !ok {
		return nil, w.about(fmt.Errorf("the script answered %T", result))
	}
	return results, nil
}

// Eval runs your Lua script, which sees KEYS and ARGV as usual, unless the fence has seen a greater
// token: then it returns a *fencing.StaleError and the script does not run. An error that the
// script raises does not undo what it has written before.
func (w *Writer) Eval(ctx context.Context, script string, keys, args []string) (any, error) {
	return w.run(ctx, wrap(script), keys, args)
}

func (w *Writer) run(ctx context.Context, script string, keys, args []string) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	keys = append([]string{w.fence}, keys...)
	args = append([]string{strconv.FormatUint(w.token, 10)}, args...)
	answer, err := w.client.Eval(ctx, script, keys, args)
	if err != nil {
		return nil, w.about(err)
	}
	a, ok := answer.([]any)
	if !ok || len(a) == 0 || len(a) > 2 {
		return nil, w.about(fmt.Errorf("the script answered %T", answer))
	}
	if len(a) == 2 {
		return a[1], nil
	}
	text, _ := a[0].(string)
	seen, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return nil, w.about(fmt.Errorf("the fence %s is damaged: %w", w.fence, err))
	}
	return nil, fencing.Compare(w.name, w.token, seen)
}

func (w *Writer) about(err error) error {
	return fmt.Errorf("write with token %d of lock %q: %w", w.token, w.name, err)
}

// tag is the part of a key that decides its slot: the text between the first '{' and the next '}',
// or the whole key.
func tag(key string) string {
	if _, rest, found := strings.Cut(key, "{"); found {
		if t, _, closed := strings.Cut(rest, "}"); closed && t != "" {
			return t
		}
	}
	return key
}

// Rueidis returns a Client of a rueidis client. It repeats nothing: by itself rueidis repeats only
// commands that it knows to be read-only, and scripts are not.
func Rueidis(client rueidis.Client) Client { return rueidisClient{client} }

type rueidisClient struct{ client rueidis.Client }

// luas are the scripts with their hashes.
var luas sync.Map // script -> *rueidis.Lua

func (c rueidisClient) Eval(ctx context.Context, script string, keys, args []string) (any, error) {
	// rueidis panics on keys of different slots. Two tags can share a slot, but only by chance, and
	// no program should rely on that.
	if c.client.Mode() == rueidis.ClientModeCluster {
		for _, k := range keys[1:] {
			if tag(k) != tag(keys[0]) {
				return nil, fmt.Errorf("%w: in a cluster the key %q must have the hash tag of its fence, {%s}", fencing.ErrInvalid, k, tag(keys[0]))
			}
		}
	}
	lua, ok := luas.Load(script)
	if !ok {
		lua, _ = luas.LoadOrStore(script, rueidis.NewLuaScript(script))
	}
	answer, err := lua.(*rueidis.Lua).Exec(ctx, c.client, keys, args).ToAny()
	if rueidis.IsRedisNil(err) {
		return nil, nil
	}
	return answer, err
}
