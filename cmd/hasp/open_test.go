//go:build unix

package main

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/etcdlock"
	"github.com/hasplock/hasp/filelock"
	"github.com/hasplock/hasp/kubelock"
	"github.com/hasplock/hasp/memlock"
	"github.com/hasplock/hasp/mysqllock"
	"github.com/hasplock/hasp/pglock"
	"github.com/hasplock/hasp/redislock"
	"github.com/hasplock/hasp/redislock/redlock"
	"github.com/hasplock/hasp/s3lock"
	"github.com/hasplock/hasp/zklock"
)

// Each driver's Open takes the URLs of its store, whose mistakes it reports, and no other URL.
func TestOpenOfDrivers(t *testing.T) {
	drivers := map[string]func(context.Context, string) (driver.Backend, error){
		"etcd": etcdlock.Open, "file": filelock.Open, "kube": kubelock.Open, "mem": memlock.Open, "mysql": mysqllock.Open,
		"postgres": pglock.Open, "s3": s3lock.Open, "redis": redislock.Open, "redlock": redlock.Open, "zookeeper": zklock.Open,
	}
	for own, open := range drivers {
		for scheme := range drivers {
			_, err := open(t.Context(), (&url.URL{Scheme: scheme, Path: "/", RawQuery: "nosuchparameter=1"}).String())
			foreign := err != nil && strings.Contains(err.Error(), "begins with one of")
			if !errors.Is(err, driver.ErrInvalid) || foreign == (scheme == own) {
				t.Errorf("%s, by the driver of %s: %v", scheme, own, err)
			}
		}
	}
	b, err := filelock.Open(t.Context(), "file://"+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if b, err = memlock.Open(t.Context(), "mem://"+t.Name()); err != nil || b.Close() != nil {
		t.Errorf("mem: %v", err)
	}
}
