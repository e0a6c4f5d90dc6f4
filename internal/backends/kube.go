package backends

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/serverprocess"
)

// Kube is a Kubernetes API server with a separate etcd.
type Kube struct {
	*Process
	Etcd *Etcd
	Addr string      // host:port
	TLS  *tls.Config // trusts the server
	CA   string      // file

	files  *kubeFiles
	beside bool // another's etcd
}

// Tokens of users: the administrator, and one without any right until a Role gives some.
const (
	KubeAdmin = "admin-token"
	KubeUser  = "user-token" // of the user "locker"
)

// StartKube starts an API server for this test alone.
func StartKube(tb testing.TB) *Kube {
	tb.Helper()
	return private(tb, startKube, newEtcd, kubeServer)
}

var sharedKube once[*Kube]

// SharedKube returns the process's API server.
func SharedKube(tb testing.TB) *Kube {
	tb.Helper()
	return sharedKube.get(tb, startKube, newEtcd, kubeServer)
}

// StartKubeBeside starts another API server of the same cluster for this test alone: with the same
// etcd, keys and tokens.
func StartKubeBeside(tb testing.TB, k *Kube) *Kube {
	tb.Helper()
	return private(tb, func() (*Kube, error) {
		beside := &Kube{Etcd: k.Etcd, files: k.files, beside: true}
		return beside, beside.start()
	}, kubeServer)
}

// Kustomize returns what kustomize makes of a directory.
func Kustomize(tb testing.TB, dir string) []byte {
	tb.Helper()
	need(tb, kustomize)
	out, err := exec.Command(kustomize.path(0), dir).Output()
	if err != nil {
		tb.Fatal(outputOf(err))
	}
	return out
}

// kubeFiles are what the API servers of a cluster share.
type kubeFiles struct {
	*certificates
	signing, tokens string
}

func newKubeFiles(dir string) (*kubeFiles, error) {
	c, err := newCertificates(dir, nil)
	if err != nil {
		return nil, err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	f := &kubeFiles{c, filepath.Join(dir, "signing.key"), filepath.Join(dir, "tokens.csv")}
	return f, errors.Join(writePEM(f.signing, nil, "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key)),
		serverprocess.WriteFile(f.tokens, nil, KubeAdmin+`,admin,1,"system:masters"`+"\n"+KubeUser+",locker,2\n"))
}

func startKube() (*Kube, error) {
	etcd, err := startEtcd(EtcdOptions{})
	if err != nil {
		return nil, err
	}
	k := &Kube{Etcd: etcd}
	if err := k.start(); err != nil {
		return nil, errors.Join(err, etcd.Discard())
	}
	return k, nil
}

func (k *Kube) start() error {
	ports, release, err := serverprocess.ReservePorts(1)
	if err != nil {
		return err
	}
	dir, err := serverprocess.NewDir("kube", nil)
	if err == nil && k.files == nil {
		k.files, err = newKubeFiles(dir)
	}
	if err != nil {
		return err
	}
	f := k.files
	k.Addr, k.TLS, k.CA = serverprocess.Local(ports[0]), f.client, f.ca
	k.Process, err = serverprocess.Start(serverprocess.Command{
		Name: "kube-apiserver " + k.Addr, Dir: dir, Release: release, Stop: serverprocess.Terminate,
		Argv: []string{
			kubeServer.path(0), "--etcd-servers=" + k.Etcd.URL(), "--service-account-issuer=https://hasp.test",
			"--service-account-key-file=" + f.signing, "--service-account-signing-key-file=" + f.signing,
			"--cert-dir=" + dir, "--tls-cert-file=" + f.cert, "--tls-private-key-file=" + f.key,
			fmt.Sprint("--secure-port=", ports[0]), "--bind-address=127.0.0.1", "--token-auth-file=" + f.tokens,
			"--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount",
			// Otherwise the server drops strategy and preferredHolder from a Lease.
			"--feature-gates=CoordinatedLeaderElection=true", "--runtime-config=coordination.k8s.io/v1beta1=true",
		},
		Ready: k.ready,
	})
	return err
}

func (k *Kube) ready() error {
	request, err := http.NewRequest(http.MethodGet, "https://"+k.Addr+"/readyz", nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+KubeAdmin)
	client := http.Client{Transport: &http.Transport{TLSClientConfig: k.TLS, DisableKeepAlives: true}, Timeout: 2 * time.Second}
	reply, err := client.Do(request)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(reply.Body)
	if err := errors.Join(err, reply.Body.Close()); err != nil {
		return err
	}
	if reply.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", reply.Status, text)
	}
	return nil
}

// Discard ends both, or the server alone if it is beside another.
func (k *Kube) Discard() error {
	if k.beside {
		return k.Process.Discard()
	}
	return errors.Join(k.Process.Discard(), k.Etcd.Discard())
}
