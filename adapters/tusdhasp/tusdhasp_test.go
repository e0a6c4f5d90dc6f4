package tusdhasp_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tus/tusd/v2/pkg/filestore"
	"github.com/tus/tusd/v2/pkg/handler"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/adapters/internal/processes"
	"github.com/hasplock/hasp/adapters/tusdhasp"
	_ "github.com/hasplock/hasp/filelock"
)

func lockOf(t *testing.T, dir string) handler.Lock {
	t.Helper()
	l, err := tusdhasp.New(processes.Client(t, dir)).NewLock("upload")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Two processes have an upload in turn; each lets go only when the other asks.
func TestProcesses(t *testing.T) {
	if dir, _, is := processes.Child(); is {
		l := lockOf(t, dir)
		for range 5 {
			asked := make(chan struct{}, 8)
			if err := l.Lock(t.Context(), func() { asked <- struct{}{} }); err != nil {
				t.Fatal(err)
			}
			if err := processes.Inside(dir, 20*time.Millisecond); err != nil {
				t.Error(err)
			}
			select {
			case <-asked:
			case <-time.After(5 * time.Second): // the other one has done its five
			}
			if err := l.Unlock(); err != nil {
				t.Error(err)
			}
		}
		return
	}
	dir := t.TempDir()
	for _, out := range processes.Run(t, 2, dir, "") {
		t.Error(out)
	}
	if n := len(processes.Runs(t, dir)); n != 10 {
		t.Errorf("%d runs", n)
	}
}

// The end of ctx is the time-out that tusd expects; a loss asks for the unlocking.
func TestLoss(t *testing.T) {
	dir := t.TempDir()
	l := lockOf(t, dir)
	asked := make(chan struct{}, 8)
	if err := l.Lock(t.Context(), func() { asked <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := lockOf(t, dir).Lock(ctx, func() {}); !errors.Is(err, handler.ErrLockTimeout) {
		t.Errorf("%v, want tusd's time-out", err)
	}
	<-asked
	if err := processes.Lose(t.Context(), processes.Client(t, dir), "tusd/upload"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-asked:
	case <-time.After(10 * time.Second):
		t.Error("nothing was asked for after the loss")
	}
	if err := l.Unlock(); !errors.Is(err, hasp.ErrLost) {
		t.Errorf("%v, want the loss", err)
	}
	if err := lockOf(t, dir).Unlock(); err == nil {
		t.Error("Unlock without Lock")
	}
}

// server is a tusd server of the uploads in dir.
func server(t *testing.T, dir string) string {
	t.Helper()
	if err := os.MkdirAll(dir+"/files", 0o700); err != nil {
		t.Fatal(err)
	}
	composer := handler.NewStoreComposer()
	filestore.New(dir + "/files").UseIn(composer)
	composer.UseLocker(tusdhasp.New(processes.Client(t, dir)))
	h, err := handler.NewHandler(handler.Config{BasePath: "/files/", StoreComposer: composer})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.StripPrefix("/files/", h))
	t.Cleanup(s.Close)
	return s.URL
}

func request(t *testing.T, method, url string, header map[string]string, body io.Reader) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Tus-Resumable", "1.0.0")
	for k, v := range header {
		r.Header.Set(k, v)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil // the server has ended the request that was asked to let go
	}
	answer.Body.Close()
	return answer
}

// A client whose upload hangs on one server resumes it on another.
func TestServers(t *testing.T) {
	dir := t.TempDir()
	first, second := server(t, dir), server(t, dir)
	text := strings.Repeat("x", 100<<10)
	created := request(t, "POST", first+"/files/", map[string]string{"Upload-Length": "102400"}, nil)
	if created == nil || created.StatusCode != http.StatusCreated {
		t.Fatalf("%+v", created)
	}
	path := created.Header.Get("Location")
	path = path[strings.Index(path, "/files/"):]

	hanging, send := io.Pipe()
	ended := make(chan struct{})
	patch := map[string]string{"Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}
	go func() {
		defer close(ended)
		request(t, "PATCH", first+path, patch, hanging)
	}()
	if _, err := io.WriteString(send, text[:50<<10]); err != nil {
		t.Fatal(err)
	}
	file := dir + "/files/" + path[len("/files/"):]
	half := func() bool {
		info, err := os.Stat(file)
		return err == nil && info.Size() == 50<<10
	}
	for end := time.Now().Add(40 * time.Second); !half(); time.Sleep(5 * time.Millisecond) { // then the first server has its lock
		if time.Now().After(end) {
			t.Fatal("half of the upload has not arrived")
		}
	}
	head := request(t, "HEAD", second+path, nil, nil)
	if head == nil || head.StatusCode != http.StatusOK {
		t.Fatalf("%+v", head)
	}
	offset := head.Header.Get("Upload-Offset")
	if offset != "51200" {
		t.Errorf("the second server sees %s bytes", offset)
	}
	send.Close()
	<-ended
	patch["Upload-Offset"] = offset
	rest := request(t, "PATCH", second+path, patch, bytes.NewBufferString(text[50<<10:]))
	if rest == nil || rest.StatusCode != http.StatusNoContent || rest.Header.Get("Upload-Offset") != "102400" {
		t.Errorf("%+v", rest)
	}
}
