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

func startKube() (*Kube, error) {
	etcd, err := startEtcd(EtcdOptions{})
	if err != nil {
		return nil, err
	}
	ports, release, err := serverprocess.ReservePorts(1)
	if err != nil {
		return nil, errors.Join(err, etcd.Discard())
	}
	dir, err := serverprocess.NewDir("kube", nil)
	if err != nil {
		return nil, errors.Join(err, etcd.Discard())
	}
	c, err1 := newCertificates(dir, nil)
	key, err2 := rsa.GenerateKey(rand.Reader, 2048)
	signing, tokens := filepath.Join(dir, "signing.key"), filepath.Join(dir, "tokens.csv")
	err = errors.Join(err1, err2)
	if err == nil {
		err = errors.Join(writePEM(signing, nil, "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key)),
			serverprocess.WriteFile(tokens, nil, KubeAdmin+`,admin,1,"system:masters"`+"\n"+KubeUser+",locker,2\n"))
	}
	if err != nil {
		return nil, errors.Join(err, etcd.Discard())
	}
	k := &Kube{Etcd: etcd, Addr: serverprocess.Local(ports[0]), TLS: c.client, CA: c.ca}
	k.Process, err = serverprocess.Start(serverprocess.Command{
		Name: "kube-apiserver " + k.Addr, Dir: dir, Release: release, Stop: serverprocess.Terminate,
		Argv: []string{
			kubeServer.path(0), "--etcd-servers=" + etcd.URL(), "--service-account-issuer=https://hasp.test",
			"--service-account-key-file=" + signing, "--service-account-signing-key-file=" + signing,
			"--cert-dir=" + dir, "--tls-cert-file=" + c.cert, "--tls-private-key-file=" + c.key,
			fmt.Sprint("--secure-port=", ports[0]), "--bind-address=127.0.0.1", "--token-auth-file=" + tokens,
			"--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount",
			// Otherwise the server drops strategy and preferredHolder from a Lease.
			"--feature-gates=CoordinatedLeaderElection=true", "--runtime-config=coordination.k8s.io/v1beta1=true",
		},
		Ready: k.ready,
	})
	if err != nil {
		return nil, errors.Join(err, etcd.Discard())
	}
	return k, nil
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

// Discard ends both.
func (k *Kube) Discard() error { return errors.Join(k.Process.Discard(), k.Etcd.Discard()) }
