package testkit

import (
	"io"
	"net"
	"testing"
)

// Rewritten is a real server behind a proxy that rewrites what the server says. The rewriting keeps
// the length: protocols say it in front.
func Rewritten(t testing.TB, server string, rewrite func(said []byte)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			s, err := net.Dial("tcp", server)
			if err != nil {
				c.Close()
				continue
			}
			go func() {
				_, _ = io.Copy(s, c)
				s.Close()
			}()
			go func() {
				defer c.Close()
				said := make([]byte, 1<<20)
				for n, err := s.Read(said); err == nil; n, err = s.Read(said) {
					rewrite(said[:n])
					if _, err := c.Write(said[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// Overwrite puts a text of the same length, or a shorter one and spaces, over each old one.
func Overwrite(said []byte, old, text string) {
	for i := 0; i+len(old) <= len(said); i++ {
		if string(said[i:i+len(old)]) == old {
			for j := range old {
				said[i+j] = ' '
			}
			copy(said[i:i+len(old)], text)
		}
	}
}
