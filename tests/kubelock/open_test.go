package kubelock_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/kubelock"
)

// kubeconfig has two contexts: "test", without a namespace, and "spaced", whose user cannot do
// anything.
func kubeconfig(t testing.TB, addr, ca, admin string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: "https://%s", certificate-authority: %s, tls-server-name: localhost}}]
users: [{name: test, user: {token: %s}}, {name: none, user: {token: %s}}]
contexts:
- {name: test, context: {cluster: test, user: test}}
- {name: spaced, context: {cluster: test, user: none, namespace: of-context}}
`, addr, ca, admin, backends.KubeUser)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Where the cluster and the namespace come from, outside of a pod. No server is needed for that.
func TestURL(t *testing.T) {
	file := kubeconfig(t, "127.0.0.1:1", "", backends.KubeAdmin)
	t.Setenv("KUBECONFIG", file)
	t.Setenv("HOME", t.TempDir())
	names := func(url, want string) {
		t.Helper()
		b, err := kubelock.Open(testkit.Context(t), url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			return
		}
		defer b.Close()
		if got := b.String(); got != want {
			t.Errorf("%s is %q, want %q", url, got, want)
		}
	}
	names("kube://", "kube 127.0.0.1:1/hasp-locks")
	names("kube://mine", "kube 127.0.0.1:1/mine")
	names("kube://?context=spaced", "kube 127.0.0.1:1/of-context")
	names("kube://mine?context=spaced", "kube 127.0.0.1:1/mine")
	other := kubeconfig(t, "127.0.0.1:2", "", backends.KubeAdmin)
	names("kube://mine?kubeconfig="+other, "kube 127.0.0.1:2/mine")
	names("kube://mine?server=https://127.0.0.1:3&servername=kubernetes", "kube 127.0.0.1:3/mine")
	for url, want := range map[string]error{
		"kube://user:secret@mine": driver.ErrInvalid, "kube://mine:443": driver.ErrInvalid, "kube://mine/path": driver.ErrInvalid,
		"kube://No_Name": driver.ErrInvalid, "kube://two.labels": driver.ErrInvalid, "kube://" + strings.Repeat("n", 64): driver.ErrInvalid,
		"kube://kube-node-lease": driver.ErrMismatch, "kube://mine?context=missing": driver.ErrInvalid, "kube://mine?typo=1": driver.ErrInvalid,
		"kube://mine?kubeconfig=/missing": driver.ErrInvalid, "kube://mine?server=http://h": driver.ErrInvalid,
	} {
		b, err := kubelock.Open(testkit.Context(t), url)
		if err == nil {
			b.Close()
		}
		if !errors.Is(err, want) || err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %v", url, err, want)
		}
	}
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	if _, err := kubelock.Open(testkit.Context(t), "kube://mine"); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("without any configuration: %v", err)
	}
}

// The pod's service account and namespace, by the files that every pod has: a process that sees
// them at their place.
func TestInCluster(t *testing.T) {
	if os.Getenv("HASP_KUBE_POD") != "" {
		inPod(t)
		return
	}
	c := shared(t)
	t.Parallel()
	const ns = "pod"
	c.namespace(t, ns)
	account := t.TempDir()
	ca, err := os.ReadFile(c.CA)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"ca.crt": string(ca), "namespace": ns, "token": c.serviceAccount(t, "pod")} {
		if err := os.WriteFile(filepath.Join(account, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.ask(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/namespaces/"+ns+"/rolebindings", object{
		"metadata": object{"name": "pods"}, "roleRef": object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
		"subjects": []any{object{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:serviceaccounts:default"}},
	})
	host, port, err := net.SplitHostPort(c.Addr)
	if err != nil {
		t.Fatal(err)
	}
	// Its files' directory is below /run: it sees another /run, which is none for others.
	script := `mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io && ln -s "$1" /run/secrets/kubernetes.io/serviceaccount && exec "$2" -test.run '^TestInCluster$' -test.v`
	if out, err := exec.Command("unshare", "-rm", "sh", "-c", "mount -t tmpfs none /run").CombinedOutput(); err != nil {
		t.Skipf("no separate mounts here: %v %s", err, out)
	}
	pod := exec.Command("unshare", "-rm", "sh", "-c", script, "sh", account, testkit.Must[string](t)(os.Executable()))
	pod.Env = append(os.Environ(), "HASP_KUBE_POD=1", "HOME=/none", "KUBECONFIG=", "KUBERNETES_SERVICE_HOST="+host, "KUBERNETES_SERVICE_PORT="+port)
	if out, err := pod.CombinedOutput(); err != nil {
		t.Errorf("the pod: %v\n%s", err, out)
	}
}

// inPod runs in the pod.
func inPod(t *testing.T) {
	client := testkit.Client(t, "kube://", hasp.WithTTL(ttl))
	if got := client.Store(); !strings.HasSuffix(got, "/pod") {
		t.Errorf("the store is %q, not in the pod's namespace", got)
	}
	testkit.Release(t, testkit.Lock(t, client, "a"))
}

// A token in a file is replaced, as the kubelet does long before the old one ends. The library reads
// it once a minute; a lock that is held stays.
func TestRotatedToken(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const ns = "rotated"
	c.namespace(t, ns)
	c.ask(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/namespaces/"+ns+"/rolebindings", object{
		"metadata": object{"name": "old-and-new"}, "roleRef": object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
		"subjects": []any{object{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:serviceaccounts:default"}},
	})
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(file+".new", []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(c.serviceAccount(t, "old"))
	next := c.serviceAccount(t, "new")
	renewed := make(chan struct{}, 1000)
	short := c.client(t, ns, func(r *restConfig) { r.BearerToken, r.BearerTokenFile = "", file }, between(func(r *http.Request) {
		if r.Method == http.MethodPut && r.Header.Get("Authorization") == "Bearer "+next {
			renewed <- struct{}{}
		}
	}))
	client := testkit.ClientOn(t, short.Backend(), hasp.WithTTL(10*ttl)) // a busy machine takes none of it
	l := testkit.Lock(t, client, "a")
	write(next)
	select {
	case <-renewed:
	case <-time.After(2 * time.Minute):
		t.Fatal("no renewal has the new token")
	}
	c.ask(t, http.MethodDelete, "/api/v1/namespaces/default/serviceaccounts/old", nil) // which ends its token
	for len(renewed) > 0 {
		<-renewed
	}
	testkit.Await(t, "a renewal after that", renewed)
	if !l.Held() {
		t.Errorf("lost: %v", l.Err())
	}
	testkit.Release(t, l)
}
