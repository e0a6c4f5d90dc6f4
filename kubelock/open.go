package kubelock

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"

	"github.com/hasplock/hasp/caslock"
	"github.com/hasplock/hasp/driver"
)

func init() { driver.Register("kube", openURL) }

// MinTTL is the shortest TTL. client-go compares renewal times in whole seconds, and each renewal
// of ours is a second later than the one before: with a TTL of two seconds a live lease could look
// unchanged for all of it.
const MinTTL = 3 * time.Second

// Options are the settings of New. nil or zero fields are the defaults.
type Options struct {
	// Namespace of the Leases. Default: "hasp-locks".
	Namespace string
	// Retention is for how long a free Lease of hasp's is kept at least. Default: a day.
	Retention time.Duration
}

const defaultNamespace = "hasp-locks"

// Open connects to the cluster that a URL names. ctx bounds that only. Errors never show the URL.
func Open(ctx context.Context, storeURL string) (driver.Backend, error) {
	return driver.Open(ctx, storeURL, "kube")
}

func openURL(_ context.Context, u *url.URL) (driver.Backend, error) {
	p := driver.NewParams(u.Query())
	file, in := p.String("kubeconfig", ""), p.String("context", "")
	server, servername := p.String("server", ""), p.String("servername", "")
	retention := p.Duration("retention", 24*time.Hour)
	if err := p.Err(); err != nil {
		return nil, err
	}
	if u.User != nil || u.Port() != "" || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("%w: write kube://NAMESPACE; the server and the credentials are those of the pod, or of the kubeconfig", driver.ErrInvalid)
	}
	config, namespace, err := load(file, in)
	if err != nil {
		return nil, err
	}
	if u.Host != "" {
		namespace = u.Host
	}
	if server != "" {
		if s, err := url.Parse(server); err != nil || s.Host == "" || s.Scheme != "https" || s.User != nil {
			return nil, fmt.Errorf("%w: parameter \"server\" must be https://HOST:PORT", driver.ErrInvalid)
		}
		config.Host = server
	}
	if servername != "" {
		config.TLSClientConfig.ServerName = servername
	}
	return New(config, &Options{Namespace: namespace, Retention: retention})
}

// load finds the cluster as kubectl does: KUBECONFIG or ~/.kube/config, and the pod's own where
// there is none. The namespace is the pod's or the context's, or "".
func load(file, in string) (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: in})
	c, err := config.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("%w: no cluster is known here: in a pod its service account is used, elsewhere KUBECONFIG or ~/.kube/config (%w)", driver.ErrInvalid, err)
	}
	raw, err := config.RawConfig()
	if err != nil {
		return nil, "", fmt.Errorf("%w: the kubeconfig: %w", driver.ErrInvalid, err)
	}
	if in == "" {
		in = raw.CurrentContext
	}
	if chosen := raw.Contexts[in]; chosen != nil {
		return c, chosen.Namespace, nil
	}
	namespace, _, err := config.Namespace() // the pod's; of a context without one it would be "default"
	if err != nil {
		return nil, "", fmt.Errorf("%w: the pod's namespace: %w", driver.ErrInvalid, err)
	}
	return c, namespace, nil
}

// New makes a backend of a cluster. The configuration is copied. Nothing is sent yet.
func New(config *rest.Config, opts *Options) (driver.Backend, error) {
	if config == nil {
		return nil, fmt.Errorf("%w: the configuration is nil", driver.ErrInvalid)
	}
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Namespace == "" {
		o.Namespace = defaultNamespace
	}
	if o.Namespace == "kube-node-lease" {
		return nil, fmt.Errorf("%w: kube-node-lease has the nodes' heartbeats; take a namespace of your own", driver.ErrMismatch)
	}
	if !isObjectName(o.Namespace) || strings.Contains(o.Namespace, ".") || len(o.Namespace) > 63 {
		return nil, fmt.Errorf("%w: that is no name of a namespace", driver.ErrInvalid)
	}
	writes, err := client(config, "http/1.1")
	if err != nil {
		return nil, err
	}
	watches, err := client(config, "")
	if err != nil {
		return nil, err
	}
	s := &store{namespace: o.Namespace, host: config.Host, client: writes, watches: watches}
	return caslock.New(s, &caslock.Options{MinTTL: MinTTL, MaxTTL: math.MaxInt32 * time.Second, Resolution: time.Second, Retention: o.Retention}), nil
}

// client makes a client with separate connections. client-go shares transports among
// configurations that are alike, and over HTTP/2 all requests of a process wait for 45 seconds on
// one connection that has died (kubernetes#121793): so renewals go over HTTP/1.1, where a request
// that is given up closes its connection, and the next one opens another. It sends nothing twice
// and holds nothing back: the core does that, knowing more.
func client(config *rest.Config, protocol string) (*rest.RESTClient, error) {
	c := rest.CopyConfig(config)
	c.GroupVersion, c.APIPath = &coordination.SchemeGroupVersion, "/apis"
	c.NegotiatedSerializer = codecs()
	c.QPS, c.RateLimiter = -1, nil
	c.WarningHandler = rest.NoWarnings{} // the library would write them to stderr
	if c.Dial == nil {
		// A user's may be a tunnel.
		c.Dial = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 10 * time.Second}).DialContext
	}
	if protocol != "" {
		c.TLSClientConfig.NextProtos = []string{protocol}
	}
	if c.BearerTokenFile != "" {
		// The library reads the file once a minute. This source reads it after a 401, too: a token that
		// was taken back when it was replaced would else lose all locks.
		source := transport.NewCachedFileTokenSource(c.BearerTokenFile)
		if _, err := source.Token(); err == nil { // else the library says what is wrong, or has another token
			c.BearerToken, c.BearerTokenFile = "", ""
			c.Wrap(transport.ResettableTokenSourceWrapTransport(source))
		}
	}
	if c.UserAgent == "" {
		c.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	r, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("%w: the cluster's configuration: %w", driver.ErrInvalid, err)
	}
	return r, nil
}

// codecs know Leases alone: the typed clients of client-go link every type of Kubernetes. Both are
// made when they are needed: a command that links this package may use another store.
var codecs = sync.OnceValue(func() runtime.NegotiatedSerializer {
	scheme := runtime.NewScheme()
	if err := coordination.AddToScheme(scheme); err != nil {
		panic(err) // of constants
	}
	meta.AddToGroupVersion(scheme, coordination.SchemeGroupVersion)
	return serializer.NewCodecFactory(scheme).WithoutConversion()
})

var parameters = sync.OnceValue(func() runtime.ParameterCodec {
	scheme := runtime.NewScheme()
	meta.AddToGroupVersion(scheme, meta.SchemeGroupVersion)
	meta.AddToGroupVersion(scheme, coordination.SchemeGroupVersion)
	if err := coordination.AddToScheme(scheme); err != nil {
		panic(err)
	}
	return runtime.NewParameterCodec(scheme)
})
