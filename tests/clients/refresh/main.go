// Command refresh asks for an access token, as docs/RECIPES.md does, and prints it. The store of the
// lock, the file of the tokens and the endpoint that refreshes them are its arguments.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"

	"github.com/hasplock/hasp"
	_ "github.com/hasplock/hasp/httplock"
)

var c *hasp.Client

type tokens struct{ Access, Refresh string }

func (t tokens) fresh() bool { return t.Access != "expired" }

func load() (t tokens) {
	text, err := os.ReadFile(os.Args[2])
	if err = errors.Join(err, json.Unmarshal(text, &t)); err != nil {
		panic(err)
	}
	return t
}

// store replaces the file in one step, for those who read it without the lock.
func store(t tokens) error {
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	next := fmt.Sprint(os.Args[2], ".", os.Getpid())
	return errors.Join(os.WriteFile(next, text, 0o600), os.Rename(next, os.Args[2]))
}

func refresh(ctx context.Context, token string) (t tokens, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, os.Args[3], bytes.NewBufferString(token))
	if err != nil {
		return t, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return t, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return t, errors.New("invalid_grant")
	}
	return t, json.NewDecoder(answer.Body).Decode(&t)
}

func accessToken(ctx context.Context) (string, error) {
	t := load()
	if t.fresh() {
		return t.Access, nil
	}
	err := c.Do(ctx, "token/github", func(ctx context.Context) (err error) {
		t = load() // again: another may have refreshed it while we waited
		if t.fresh() {
			return nil
		}
		if t, err = refresh(ctx, t.Refresh); err != nil {
			return err
		}
		return store(t) // under the lock, for the next one's look
	})
	return t.Access, err
}

func main() {
	ctx := context.Background()
	var err error
	if c, err = hasp.Open(ctx, "hasp+"+os.Args[1]); err != nil {
		panic(err)
	}
	defer c.Close()
	token, err := accessToken(ctx)
	fmt.Println(token, err)
}
