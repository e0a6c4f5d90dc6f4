package serve_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve"
	"github.com/hasplock/hasp/internal/httpapi"
)

// A token that asks too much is refused, and keeps what it has: keep-alives and releases are always
// served.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := serve.Defaults
		limits.Rate = 10
		c, _ := with(t, serve.Options{Limits: limits})
		c.open(time.Minute)
		c.lock("1", "a")
		for range 9 {
			c.want(http.StatusOK, "GET", "/v1/queue?name=a", nil, nil)
		}
		c.refused(httpapi.Limit, "GET", "/v1/queue?name=a", nil) // the eleventh at one moment
		c.want(http.StatusOK, "POST", "/v1/session/keepalive", nil, nil)
		time.Sleep(200 * time.Millisecond)
		for range 2 {
			c.want(http.StatusOK, "GET", "/v1/queue?name=a", nil, nil)
		}
		c.refused(httpapi.Limit, "PUT", "/v1/locks/2", httpapi.Acquire{Name: "b"})
		c.want(http.StatusNoContent, "DELETE", "/v1/locks/1", nil, nil)
		time.Sleep(time.Hour)
		for range 10 { // and no more are saved up
			c.want(http.StatusOK, "GET", "/v1/queue?name=a", nil, nil)
		}
		c.refused(httpapi.Limit, "GET", "/v1/queue?name=a", nil)
	})
}

// Without a limit there is none.
func TestNoRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := with(t, serve.Options{})
		for range 5000 {
			c.want(http.StatusOK, "GET", "/v1/queue?name=a", nil, nil)
		}
	})
}

// A client whose server has died goes on at another one, however much others ask there with its
// token.
func TestRateLeavesRoomToMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := serve.Defaults
		limits.Rate = 10
		c, _ := with(t, serve.Options{Limits: limits})
		for range 10 { // all that the token may ask at this moment
			c.want(http.StatusOK, "GET", "/v1/queue?name=a", nil, nil)
		}
		c.refused(httpapi.Limit, "GET", "/v1/queue?name=a", nil)
		c.open(time.Minute) // what is held elsewhere can be adopted by it
	})
}
