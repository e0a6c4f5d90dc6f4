package driver

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Params reads the query of a store's URL and remembers what was read, so that Err can
// refuse the rest: a mistyped parameter must not be silent. Messages name parameters
// and never their values, which may be secrets.
type Params struct {
	values url.Values
	known  map[string]bool
	err    error
}

// NewParams wraps a query.
func NewParams(query url.Values) *Params {
	return &Params{values: query, known: map[string]bool{}}
}

// Has reports whether the parameter is present.
func (p *Params) Has(key string) bool {
	p.known[key] = true
	return p.values.Has(key)
}

// String returns the parameter, or def if it is absent.
func (p *Params) String(key, def string) string {
	if !p.Has(key) {
		return def
	}
	if len(p.values[key]) > 1 {
		p.fail("parameter %q is given more than once", key)
	}
	return p.values.Get(key)
}

// OneOf returns the parameter, which must be one of allowed; the first is the default.
func OneOf[S ~string](p *Params, key string, allowed ...S) S {
	v := S(p.String(key, string(allowed[0])))
	if !slices.Contains(allowed, v) {
		var names []string
		for _, a := range allowed {
			names = append(names, string(a))
		}
		p.fail("parameter %q must be one of %s", key, strings.Join(names, ", "))
	}
	return v
}

// Bool returns a parameter that is true, false, 1 or 0.
func (p *Params) Bool(key string, def bool) bool {
	return parse(p, key, def, strconv.ParseBool, "true or false")
}

// Int returns a whole number from least to most.
func (p *Params) Int(key string, def, least, most int) int {
	v := parse(p, key, def, strconv.Atoi, "a whole number")
	if p.values.Has(key) && (v < least || v > most) {
		p.fail("parameter %q must be from %d to %d", key, least, most)
	}
	return v
}

// Duration returns a positive duration such as "10s".
func (p *Params) Duration(key string, def time.Duration) time.Duration {
	v := parse(p, key, def, time.ParseDuration, `a duration such as "10s"`)
	if p.values.Has(key) && v <= 0 {
		p.fail("parameter %q must be greater than zero", key)
	}
	return v
}

func parse[T any](p *Params, key string, def T, conv func(string) (T, error), want string) T {
	s := p.String(key, "")
	if !p.values.Has(key) {
		return def
	}
	v, err := conv(s)
	if err != nil {
		p.fail("parameter %q is not %s", key, want)
		return def
	}
	return v
}

func (p *Params) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
	}
}

// Err returns the first fault, or an error that names the parameters that no driver asked for.
func (p *Params) Err() error {
	if p.err != nil {
		return p.err
	}
	// What is behind an & in a password looks like a parameter's name.
	aPassword := func(key string) bool { return strings.Contains(key, "password") }
	hide := slices.ContainsFunc(slices.Collect(maps.Keys(p.values)), aPassword)
	var unknown []string
	for key := range p.values {
		switch {
		case p.known[key]:
		case hide && !aPassword(key):
			unknown = append(unknown, "(not shown: it may be part of a password, in which & is written %26)")
		default:
			unknown = append(unknown, strconv.Quote(key))
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	unknown = slices.Compact(unknown)
	known := make([]string, 0, len(p.known))
	for key := range p.known {
		known = append(known, key)
	}
	slices.Sort(known)
	return fmt.Errorf("%w: unknown parameter %s (known here: %s; with every store: margin, ttl)",
		ErrInvalid, strings.Join(unknown, ", "), strings.Join(known, ", "))
}
