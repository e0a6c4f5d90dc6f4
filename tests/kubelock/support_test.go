package kubelock_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/kubelock"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

// cluster is the API server, as its administrator sees it.
type cluster struct{ *backends.Kube }

var (
	namespaces sync.Map // those that were made
)

func shared(t testing.TB) cluster {
	t.Helper()
	return cluster{backends.SharedKube(t)}
}

func (c cluster) config(token string) *rest.Config {
	return &rest.Config{Host: "https://" + c.Addr, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAFile: c.CA, ServerName: "localhost"}}
}

// ask sends a request of kubectl's.
func (c cluster) ask(t testing.TB, method, path string, body any) map[string]any {
	t.Helper()
	status, answer := c.try(t, method, path, body)
	if status >= 300 {
		t.Fatalf("%s %s: %d %v", method, path, status, answer["message"])
	}
	return answer
}

func (c cluster) try(t testing.TB, method, path string, body any) (int, map[string]any) {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequest(method, "https://"+c.Addr+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+backends.KubeAdmin)
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: c.TLS, DisableKeepAlives: true}}
	reply, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	all, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	answer := map[string]any{}
	if err := json.Unmarshal(all, &answer); err != nil {
		t.Fatalf("%s %s: %s: %q", method, path, reply.Status, all)
	}
	return reply.StatusCode, answer
}

// namespace makes one.
func (c cluster) namespace(t testing.TB, name string) string {
	t.Helper()
	if _, made := namespaces.LoadOrStore(c.Addr+name, true); !made {
		c.ask(t, http.MethodPost, "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": name}})
	}
	return name
}

// url is that of a namespace, by a kubeconfig.
func (c cluster) url(t testing.TB, namespace string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: "https://%s", certificate-authority: %s, tls-server-name: localhost}}]
users: [{name: test, user: {token: %s}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
`, c.Addr, c.CA, backends.KubeAdmin)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return "kube://" + c.namespace(t, namespace) + "?kubeconfig=" + file
}

func (c cluster) open(t testing.TB, namespace string) driver.Backend {
	t.Helper()
	b, err := kubelock.New(c.config(backends.KubeAdmin), &kubelock.Options{Namespace: c.namespace(t, namespace)})
	if err != nil {
		t.Fatal(err)
	}
	return b
}
