package redisconn

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hasplock/hasp/driver"
)

// The texts are what Redis 7.0 and 6.2 answer.
func TestCode(t *testing.T) {
	for text, want := range map[string]string{
		"NOSCRIPT No matching script. Please use EVAL.":                                                                                        "NOSCRIPT",
		"WRONGTYPE Operation against a key holding the wrong kind of value script: 9fe5, on @user_script:2.":                                   "WRONGTYPE",
		"Error running script (call to f_a38b): @user_script:1: WRONGTYPE Operation against a key holding the wrong kind of value":             "WRONGTYPE",
		"ERR Error running script (call to f_5eed): @user_script:1: @user_script: 1: -OOM command not allowed when used memory > 'maxmemory'.": "OOM",
		"ERR Error running script (call to f_5eed): @user_script:12: user_script:12: attempt to compare number with nil":                       "user_script:12:",
		"ERR unknown command 'EVALSHA'": "unknown", // as without the ERR, which rueidis takes away
		"ERR FORMAT 4. hasp:mark 5.5eed0001.1700000000000000 2000000 1700000000000000  script: 9fe5, on @user_script:92.":                       "FORMAT",
		"ERR Error running script (call to f_5eed): @user_script:92: FORMAT 4. hasp:mark 5.5eed0001.1700000000000000 2000000 1700000000000000 ": "FORMAT",
	} {
		if got := ServerError(text).Code(); got != want {
			t.Errorf("%q: code %q, want %q", text, got, want)
		}
	}
}

// What the server answers to WAIT is no answer to the request before it, which was executed.
func TestUnconfirmed(t *testing.T) {
	refused := ServerError("NOPERM this user has no permissions to run the 'wait' command")
	err := Refusal(Reply{Value: "done"}.Confirmed(Reply{Err: refused}, 1).Err)
	if Answered(err) != "" || errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "NOPERM") {
		t.Error(err)
	}
	if err := (Reply{}).Confirmed(Reply{Err: context.Canceled}, 1).Err; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if r := (Reply{Value: "done"}).Confirmed(Reply{Value: int64(0)}, 1); r.Err == nil || r.Value != "done" {
		t.Errorf("%+v", r)
	}
	if r := (Reply{Err: refused}).Confirmed(Reply{Value: int64(1)}, 1); Answered(r.Err) != "NOPERM" {
		t.Errorf("%+v", r)
	}
}
