package cli

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
)

// duration is a flag's duration: Go's notation, or a bare number of seconds as in flock(1)
// and timeout(1).
type duration struct {
	d   time.Duration
	set bool
	min time.Duration
}

var errDuration = errors.New("not a duration such as 30s, 5m or 1h30m")

func (s *duration) Set(text string) error {
	d, err := time.ParseDuration(text)
	if seconds, serr := strconv.ParseUint(text, 10, 32); serr == nil {
		d, err = time.Duration(seconds)*time.Second, nil
	}
	switch {
	case err != nil:
		return errDuration
	case d < 0:
		return errors.New("a duration cannot be negative")
	case d < s.min:
		return errors.New("must be greater than zero")
	}
	s.d, s.set = d, true
	return nil
}

func (s *duration) String() string {
	if s.d == 0 {
		return ""
	}
	return s.d.String()
}

func (*duration) Type() string { return "duration" }

// permits are k of n permits of a semaphore. A bare N means one of N, since people want to say "at
// most 4 at once", and without the total nothing can be counted.
type permits struct{ k, n int64 }

var errPermits = errors.New("not a number of permits such as 4 (one of 4) or 2/4 (two of 4)")

func (p *permits) Set(text string) error {
	take, of, both := strings.Cut(text, "/")
	if !both {
		take, of = "1", text
	}
	k, kerr := strconv.ParseInt(take, 10, 64)
	n, nerr := strconv.ParseInt(of, 10, 64)
	if kerr != nil || nerr != nil || k < 1 || n < k || n >= driver.Whole {
		return errPermits
	}
	p.k, p.n = k, n
	return nil
}

func (p *permits) String() string {
	if p.n == 0 {
		return ""
	}
	return strconv.FormatInt(p.k, 10) + "/" + strconv.FormatInt(p.n, 10)
}

func (*permits) Type() string { return "[K/]N" }
