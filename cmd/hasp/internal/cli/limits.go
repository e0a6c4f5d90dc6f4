package cli

import (
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/spf13/pflag"
)

// longestTTL is the longest --ttl without a word of confirmation. A crashed holder blocks all others
// for the TTL, and nothing but hasp release --force shortens that: 100000h is meant as "for ever" by
// those who expect the lock to end with their program, which it does at any TTL.
const longestTTL = 24 * time.Hour

// checkTTL refuses a longer TTL, whether by flag or in the store's URL, unless --allow-long-ttl is
// given.
func checkTTL(fs *pflag.FlagSet) error {
	allow, store := fs.Lookup("allow-long-ttl"), fs.Lookup("store")
	if allow == nil || store == nil || allow.Value.String() == "true" {
		return nil // the verb holds nothing, or the user knows
	}
	ttl := fs.Lookup("ttl").Value.(*span)
	d, where := ttl.d, "--ttl"
	if !ttl.set {
		d, where = ttlIn(store.Value.String()), "the ttl in the store's URL"
	}
	if d <= longestTTL {
		return nil
	}
	return usage("%s is %s: if the holder crashes, others wait for so long. A lock is renewed while its holder lives; add --allow-long-ttl if more than %s is meant",
		where, d, longestTTL)
}

func ttlIn(store string) time.Duration {
	u, err := driver.SplitURL(store)
	if err != nil {
		return 0
	}
	d, err := time.ParseDuration(u.Query().Get("ttl"))
	if err != nil {
		return 0 // absent, or the driver says what is wrong with it
	}
	return d
}
