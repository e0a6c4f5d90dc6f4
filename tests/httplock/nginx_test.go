package httplock_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/tests/internal/haspserve"
)

// nginx starts one with its defaults before a server, and returns its address. Below /buffered/ it
// does not look at what the server says about buffering.
func nginx(t *testing.T, server string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close() // another program may take it: then nginx says so
	dir := t.TempDir()
	conf := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(`user root; daemon off; pid %[1]s/pid; error_log %[1]s/errors;
events {}
http { access_log off; client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c; uwsgi_temp_path %[1]s/d; scgi_temp_path %[1]s/e;
  server { listen %[2]s;
    location / { proxy_pass http://%[3]s; proxy_set_header Host 127.0.0.1; }
    location /buffered/ { proxy_pass http://%[3]s/; proxy_set_header Host 127.0.0.1; proxy_ignore_headers X-Accel-Buffering; }
  } }`, dir, addr, server)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(backends.Nginx(t), "-p", dir, "-c", conf, "-e", filepath.Join(dir, "errors"))
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(os.Interrupt)
		_ = c.Wait() // by the signal
	})
	testkit.Until(t, "nginx to listen", func() error {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			said, _ := os.ReadFile(filepath.Join(dir, "errors"))
			return fmt.Errorf("%w\n%s", err, said)
		}
		return conn.Close()
	})
	return addr
}

// lines reads a stream, and sends its lines.
func lines(t *testing.T, url string) <-chan string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	all := make(chan string, 1000)
	go func() {
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			t.Error(err)
			return
		}
		r, err := http.DefaultClient.Do(q)
		if err != nil {
			return // the test is over, or waits for nothing
		}
		defer r.Body.Close()
		for s := bufio.NewScanner(r.Body); s.Scan(); {
			all <- s.Text()
		}
	}()
	return all
}

// Behind nginx with its defaults each line of a stream comes when the server has written it. The
// control is an nginx that keeps lines back.
func TestStreamsBehindNginx(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	s := haspserve.New(t, backends.SharedRedis(t).URL())
	proxy := "http://" + nginx(t, s.Addr)
	kept := lines(t, proxy+"/buffered/v1/watch?name=nginx")
	watch := lines(t, proxy+"/v1/watch?name=nginx")
	testkit.Await(t, "the first line of a watch", watch)
	select {
	case line := <-kept: // it was asked first
		t.Errorf("nginx keeps nothing back (%q): this shows nothing", line)
	default:
	}
	page := lines(t, proxy+"/page/events")
	for line := ""; line != "event: list"; {
		line = testkit.Await(t, "the list of the page", page)
	}
}
