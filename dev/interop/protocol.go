package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// The protocol. Every client, hasp's and the others', in any language, is a program that is started
// as
//
//	PROGRAM LIBRARY KIND
//
// with three variables of the environment: HASP_STORE, the server's URL; HASP_ADDRESS, its
// host:port, or several with commas between; HASP_TTL_MS. It says "ready VERSION" when it is
// connected, reads one command a line and answers each with one line. It holds at most one lock.
//
// It is also the protocol of hasp-torture's adapters (docs/TORTURE.md), which are asked to lock,
// check and unlock only: adapter.go makes one of any client.
//
//	lock NAME              wait for the lock        ok MICROS [TOKEN]
//	try NAME               take it if it is free    ok MICROS | busy | none (the library cannot)
//	unlock                 give it back             ok MICROS | lost TEXT (what the library says)
//	check                  does the library say     held | lost TEXT | none (it does not say)
//	                       that it holds?
//	count N PAUSE FILE NAME                         ok MICROS
//
// MICROS is the time of day: of the grant, or of the moment before the lock was given back.
// Both are read by the clock of one machine, so that their difference is the hand-over
// without this protocol's own pipes. The TOKEN is for fencing, from hasp's client. Any other
// answer is an error. At any time a client may say "notice lost TEXT", which is no answer and
// which the runner passes over.
//
// count takes the lock N times and each time reads a number from FILE, lets a millisecond
// pass and writes the number plus one; between two rounds it pauses for PAUSE ms. The
// millisecond makes a missing lock show: two that are inside together lose an increment.

// locker is the Go side of a client. What it returns from lock and unlock wraps errLost
// where its library says that the lock was lost.
type locker interface {
	lock(name string) error
	try(name string) (bool, error)
	unlock() error
	check() (bool, error) // an error of errLost is "lost" with a text
}

// fencer is a locker whose library gives tokens. token is that of the lock that it holds.
type fencer interface{ token() uint64 }

var (
	errLost = errors.New("lost")
	errNone = errors.New("the library cannot") // or does not say
)

// serve answers commands until the input ends.
func serve(l locker, version string, in io.Reader, out io.Writer) error {
	if _, err := fmt.Fprintf(out, "ready %s\n", version); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		answer := strings.ReplaceAll(answerTo(l, strings.Fields(lines.Text())), "\n", " ")
		if _, err := fmt.Fprintln(out, answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

func answerTo(l locker, words []string) string {
	switch {
	case len(words) == 2 && words[0] == "lock":
		answer := granted(true, l.lock(words[1]))
		if f, ok := l.(fencer); ok && strings.HasPrefix(answer, "ok ") {
			answer += fmt.Sprint(" ", f.token())
		}
		return answer
	case len(words) == 2 && words[0] == "try":
		return granted(l.try(words[1]))
	case len(words) == 1 && words[0] == "unlock":
		before := micros()
		if err := l.unlock(); err != nil {
			return failure(err)
		}
		return before
	case len(words) == 1 && words[0] == "check":
		held, err := l.check()
		if err != nil {
			return failure(err)
		}
		if !held {
			return "lost"
		}
		return "held"
	case len(words) == 5 && words[0] == "count":
		return granted(true, count(l, words[1], words[2], words[3], words[4]))
	}
	return "error: no such command"
}

func granted(ok bool, err error) string {
	switch {
	case err != nil:
		return failure(err)
	case !ok:
		return "busy"
	}
	return micros()
}

func failure(err error) string {
	switch {
	case errors.Is(err, errLost):
		return "lost " + err.Error()
	case errors.Is(err, errNone):
		return "none"
	}
	return "error: " + err.Error()
}

func micros() string { return "ok " + strconv.FormatInt(time.Now().UnixMicro(), 10) }

// dwell is how long count stays between reading and writing.
const dwell = time.Millisecond

func count(l locker, rounds, pause, file, name string) error {
	n, err1 := strconv.Atoi(rounds)
	ms, err2 := strconv.Atoi(pause)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	for range n {
		if err := l.lock(name); err != nil {
			return err
		}
		if err := increment(file); err != nil {
			return err
		}
		if err := l.unlock(); err != nil {
			return err
		}
		time.Sleep(time.Duration(ms) * time.Millisecond)
	}
	return nil
}

// increment is deliberately not atomic. A file that another client has just truncated reads as 0:
// that is a lost update like any other, and no reason to stop.
func increment(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	time.Sleep(dwell)
	return os.WriteFile(file, []byte(strconv.Itoa(n+1)), 0o644)
}
