package httpapi

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/hasplock/hasp/driver"
)

// Problem is an error as application/problem+json (RFC 9457).
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	Name   string `json:"name,omitempty"`  // of a lock
	Want   int64  `json:"want,omitempty"`  // the capacity that was asked for
	Found  int64  `json:"found,omitempty"` // the capacity of those in the queue
	Final  bool   `json:"final,omitempty"` // of a refusal: patience is of no use
}

// ProblemType begins every Problem.Type.
const ProblemType = "urn:hasp:"

// The types of problems, without ProblemType.
const (
	Gone        = "gone"         // driver.ErrGone, of a lock
	SessionGone = "session-gone" // driver.ErrGone, of the session
	Forgotten   = "forgotten"    // driver.ErrForgotten
	Mismatch    = "mismatch"     // driver.ErrMismatch
	Unsupported = "unsupported"  // driver.ErrUnsupported
	Refused     = "refused"      // driver.ErrRefused, of the store
	Invalid     = "invalid"      // driver.ErrInvalid
	Unknown     = "unknown"      // the outcome: ask again
	Overtaken   = "overtaken"    // by another request of the session for the same: ask again
	Draining    = "draining"     // the server ends; nothing was changed
	Limit       = "limit"        // of the server; nothing was changed
	NoToken     = "unauthorized" // no token, or one that is not known
	Forbidden   = "forbidden"    // the token lacks the right
	NotFound    = "not-found"    // there is no such path
	Method      = "method"       // the path has other methods: those of the header Allow
	Internal    = "internal"     // a fault of the server: the outcome is unknown
)

// problems has the status and the title of each type.
var problems = map[string]struct {
	status int
	title  string
}{
	Gone:        {http.StatusGone, "the lock is gone"},
	SessionGone: {http.StatusGone, "there is no such session (any more)"},
	Forgotten:   {http.StatusConflict, "the store may have forgotten the lock"},
	Mismatch:    {http.StatusConflict, "the name is in use by another kind of lock"},
	Unsupported: {http.StatusNotImplemented, "the store cannot do this"},
	Refused:     {http.StatusServiceUnavailable, "the store refuses"},
	Invalid:     {http.StatusBadRequest, "the request is wrong"},
	Unknown:     {http.StatusBadGateway, "the outcome is unknown; ask again"},
	Overtaken:   {http.StatusConflict, "another request for the same lock has come; ask again"},
	Draining:    {http.StatusServiceUnavailable, "this server is about to end"},
	Limit:       {http.StatusTooManyRequests, "a limit of this server is reached"},
	NoToken:     {http.StatusUnauthorized, "a known token is needed"},
	Forbidden:   {http.StatusForbidden, "the token does not allow this"},
	NotFound:    {http.StatusNotFound, "there is nothing here"},
	Method:      {http.StatusMethodNotAllowed, "the path has other methods"},
	Internal:    {http.StatusInternalServerError, "a fault of the server, which has logged it; the outcome is unknown"},
}

// ProblemTypes lists the types.
func ProblemTypes() (all []string) {
	for t := range problems {
		all = append(all, t)
	}
	return all
}

// NewProblem makes a problem of a type.
func NewProblem(kind, detail string) *Problem {
	p := problems[kind]
	return &Problem{Type: ProblemType + kind, Title: p.title, Status: p.status, Detail: detail}
}

// Of reports whether the problem is of the type.
func (p *Problem) Of(kind string) bool { return p.Type == ProblemType+kind }

func (p *Problem) Error() string {
	if p.Detail == "" {
		return p.Title
	}
	return p.Detail
}

// Unwrap is the driver's error; nil for an unknown outcome.
func (p *Problem) Unwrap() []error {
	for _, kind := range []struct {
		name string
		errs []error
	}{
		{Gone, []error{driver.ErrGone}},
		{SessionGone, []error{driver.ErrGone}},
		{Forgotten, []error{driver.ErrForgotten}},
		{Mismatch, []error{driver.ErrMismatch}},
		{Unsupported, []error{driver.ErrUnsupported}},
		{Invalid, []error{driver.ErrInvalid}},
		{NotFound, []error{driver.ErrInvalid}}, // the server has another version of the API
		{Draining, []error{driver.ErrRefused}},
		{Limit, []error{driver.ErrRefused}},
		{Forbidden, []error{driver.ErrRefused}},
		{NoToken, []error{driver.ErrRefused, driver.ErrInvalid}},
		{Refused, []error{driver.ErrRefused}},
	} {
		if p.Of(kind.name) {
			if kind.name == Refused && p.Final {
				return append(kind.errs, driver.ErrInvalid)
			}
			return kind.errs
		}
	}
	return nil
}

// AsDriver is the problem as a driver returns it.
func (p *Problem) AsDriver() error {
	if p.Of(Mismatch) && p.Found != 0 {
		return &driver.MismatchError{Name: p.Name, Want: p.Want, Found: p.Found}
	}
	return p
}

// ProblemOf is a driver's error as it is sent.
func ProblemOf(err error) *Problem {
	var p *Problem
	var m *driver.MismatchError
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &m):
		p = NewProblem(Mismatch, err.Error())
		p.Name, p.Want, p.Found = m.Name, m.Want, m.Found
		return p
	case errors.Is(err, driver.ErrGone):
		return NewProblem(Gone, err.Error())
	case errors.Is(err, driver.ErrForgotten):
		return NewProblem(Forgotten, err.Error())
	case errors.Is(err, driver.ErrMismatch):
		return NewProblem(Mismatch, err.Error())
	case errors.Is(err, driver.ErrUnsupported):
		return NewProblem(Unsupported, err.Error())
	case errors.Is(err, driver.ErrRefused):
		p = NewProblem(Refused, err.Error())
		p.Final = errors.Is(err, driver.ErrInvalid)
		return p
	case errors.Is(err, driver.ErrInvalid):
		return NewProblem(Invalid, err.Error())
	}
	return NewProblem(Unknown, fmt.Sprint(err))
}
