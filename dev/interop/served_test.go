package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
)

// The server starts in the environment that the clients in other languages get.
func TestServeStartsBesideTheClients(t *testing.T) {
	redis := backends.StartRedis(t, backends.RedisOptions{})
	hasp := filepath.Join(t.TempDir(), "hasp")
	if out, err := exec.Command("go", "build", "-C", "../../cmd/hasp", "-tags", "grpcnotrace", "-o", hasp, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Setenv(clientsVariable, filepath.Join("..", "..", "clients"))
	s := haspServe{program: hasp}
	defer s.end()
	if err := s.start("redis://" + redis.Addr); err != nil || s.addr == "" {
		t.Errorf("address %q: %v", s.addr, err)
	}
}
