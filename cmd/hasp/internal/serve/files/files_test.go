package files

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
)

// A token's line is removed while the server starts: when it has read the file, and follows it not
// yet. At the first look that token does not work any more.
func TestChangeBeforeTheFirstLook(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	var line, token [2]string
	for i, name := range []string{"stays", "goes"} {
		var err error
		if token[i], line[i], err = access.New(name, "look", ""); err != nil {
			t.Fatal(err)
		}
		if err := AddToken(file, name, line[i]); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		f := &Files{Tokens: file}
		known, err := f.Read()
		if err != nil || known.Find(token[1]) == nil {
			t.Fatalf("%+v, %v", known, err)
		}
		if err := os.WriteFile(file, []byte(line[0]+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		var read []*access.Tokens
		go func() {
			defer close(ended)
			f.Follow(ctx, nil, slog.New(slog.DiscardHandler), func(now *access.Tokens) { read = append(read, now) })
		}()
		time.Sleep(3*lookEvery + time.Second)
		cancel()
		<-ended
		if len(read) != 1 || read[0].Find(token[1]) != nil || read[0].Find(token[0]) == nil {
			t.Errorf("read %d times again, want once, without the line that has gone", len(read))
		}
	})
}
