package backends

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
)

// resp speaks Redis's protocol, version 2, one command at a time.
type resp struct {
	conn net.Conn
	r    *bufio.Reader
}

func newRESP(c net.Conn) *resp { return &resp{c, bufio.NewReader(c)} }

// do sends a command and returns the reply as text. An error reply is an error.
func (c *resp) do(args ...string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := io.WriteString(c.conn, b.String()); err != nil {
		return "", err
	}
	return c.reply()
}

func (c *resp) reply() (string, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return "", errors.New("redis: an empty reply")
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+', ':':
		return rest, nil
	case '-':
		return "", errors.New("redis: " + rest)
	}
	n, err := strconv.Atoi(rest)
	switch {
	case err != nil:
		return "", fmt.Errorf("redis: reply %q: %w", line, err)
	case n < 0:
		return "(nil)", nil
	case kind == '$':
		b := make([]byte, n+2) // with \r\n
		_, err := io.ReadFull(c.r, b)
		return string(b[:n]), err
	case kind == '*':
		elements := make([]string, n)
		for i := range elements {
			if elements[i], err = c.reply(); err != nil {
				return "", err
			}
		}
		return strings.Join(elements, "\n"), nil
	}
	return "", fmt.Errorf("redis: reply %q is not understood", line)
}
