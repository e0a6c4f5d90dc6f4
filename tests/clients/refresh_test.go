package clients_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/tests/internal/haspserve"
)

// endpoint refreshes tokens. A refresh token is for one use: with the second the session is over.
type endpoint struct {
	mu      sync.Mutex
	uses    int // of the valid one
	refused int
	another func() // returns when another process waits for the lock, and has the old token
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil || string(body) != fmt.Sprint("refresh ", e.uses) {
		e.refused++
		http.Error(w, "invalid_grant", http.StatusBadRequest)
		return
	}
	if e.uses++; e.uses == 1 {
		e.another()
	}
	json.NewEncoder(w).Encode(map[string]string{"Access": fmt.Sprint("access ", e.uses), "Refresh": fmt.Sprint("refresh ", e.uses)})
}

// Of twenty processes in three languages one refreshes the token, as docs/RECIPES.md does it, and all
// have the new one. The control: without the second look, others use the old refresh token again.
func TestRefreshOnce(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	store := backends.SharedRedis(t).URL()
	server, beside := haspserve.New(t, store), testkit.Client(t, store)
	python, npm := backends.Python(t), backends.NPM(t) // the machine's node comes with it
	clients, err := filepath.Abs("../../clients")
	if err != nil || npm == "" {
		t.Fatal(err, npm)
	}
	page, err := os.ReadFile("../../docs/RECIPES.md")
	if err != nil {
		t.Fatal(err)
	}
	look := regexp.MustCompile(`(?m)^.*again: another may have refreshed it.*\n`)
	for _, control := range []bool{false, true} {
		t.Run(fmt.Sprintf("control %t", control), func(t *testing.T) {
			work := t.TempDir()
			source := func(path, part string) string {
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if shown := regexp.MustCompile(part).FindString(string(text)); shown == "" || !strings.Contains(string(page), shown) {
					t.Errorf("docs/RECIPES.md has other code than %s", path)
				}
				if control {
					text = look.ReplaceAll(text, nil)
				}
				file := filepath.Join(work, filepath.Base(path))
				write(t, file, string(text))
				return file
			}
			goFile := source("refresh/main.go", `(?s)func accessToken.*?\n}\n`)
			pyFile := source("testdata/refresh.py", `(?s)def access_token.*?return.*?\n`)
			jsFile := source("testdata/refresh.mjs", `(?s)async function accessToken.*?\n}\n`)
			replaced, err := filepath.Abs("refresh/main.go")
			if err != nil {
				t.Fatal(err)
			}
			overlay, err := json.Marshal(map[string]map[string]string{"Replace": {replaced: goFile}})
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(work, "overlay.json"), string(overlay))
			run(t, ".", nil, "go", "build", "-overlay", filepath.Join(work, "overlay.json"), "-o", filepath.Join(work, "refresh"), "./refresh")

			e := &endpoint{another: func() {
				testkit.Eventually(t, "another process to wait", func() bool { return len(testkit.Entries(t, beside, "token/github")) > 1 })
			}}
			web := httptest.NewServer(e)
			defer web.Close()
			tokens := filepath.Join(work, "tokens")
			write(t, tokens, `{"Access": "expired", "Refresh": "refresh 0"}`)
			programs := [][]string{{filepath.Join(work, "refresh")}, {python, pyFile}, {"node", jsFile}}
			answers := make([]string, 20)
			var wg sync.WaitGroup
			for i := range answers {
				wg.Go(func() {
					args := append(programs[i%3:][0], "http://"+server.Addr, tokens, web.URL, filepath.Join(clients, "typescript/dist/index.js"))
					if i%3 != 2 {
						args = args[:len(args)-1]
					}
					out, err := try(t, work, []string{"PYTHONPATH=" + filepath.Join(clients, "python/src")}, args...)
					if answers[i] = strings.TrimSuffix(out, "\n"); err != nil {
						t.Errorf("%v: %v\n%s", args, err, out)
					}
				})
			}
			wg.Wait()
			if control {
				if e.refused == 0 {
					t.Errorf("without the second look none is logged out: this test shows nothing; %q", answers)
				}
				return
			}
			for i, a := range answers {
				if a != "access 1 <nil>" {
					t.Errorf("process %d has %q", i, a)
				}
			}
			if e.uses != 1 || e.refused != 0 {
				t.Errorf("%d refreshes, %d refused", e.uses, e.refused)
			}
		})
	}
}
