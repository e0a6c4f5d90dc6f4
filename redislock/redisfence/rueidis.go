package redisfence

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/rueidis"

	"github.com/hasplock/hasp/fencing"
)

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
