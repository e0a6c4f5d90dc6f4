package zklock

import (
	"crypto/tls"
	"fmt"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/tlsparams"
)

// Options of a Backend. nil and zero fields mean the defaults.
type Options struct {
	// Root is the node whose children are the locks: the lock "a" is the node Root/a.
	// Default: "/hasp". "/" makes the lock "member-123" the node /member-123. It is made,
	// with its parents, when it is missing.
	Root string

	// PlainNames uses lock names as node names as they are, so that a lock whose node has
	// capitals or other unusual letters can be shared with other libraries. Names that are
	// no node names, those with a '/' before all, are then refused with ErrUnsupported.
	// Default: every name works; see driver.EncodeName.
	PlainNames bool

	// Strategy is StrategyQueue (the default) or StrategyNode.
	Strategy Strategy

	// Dialect is whose node names the queue uses. Default: DialectCurator. One path must be used
	// in one dialect by everybody.
	Dialect Dialect

	// User and Password are added to the connection as a digest identity.
	User, Password string

	// ACL is who may do what with the nodes that are made. Default: ACLCreatorOnly with
	// a User, else ACLWorldOpen.
	ACL ACL

	// TLS encrypts the connection. Its ServerName defaults to the host that is dialed.
	TLS    *tls.Config
	secure tlsparams.Params // what TLS was made of, if of a URL

	// ConnectTimeout bounds each attempt to reach a server and get its first answer.
	// Default: 2 s.
	ConnectTimeout time.Duration
}

// Strategy is how a lock is kept in the store.
type Strategy string

const (
	// StrategyQueue is a queue of ephemeral sequential nodes; each waiter watches the one in front.
	StrategyQueue Strategy = "queue"
	// StrategyNode is a single ephemeral node that everybody tries to create and watches: no order,
	// a herd at each release, mutexes and elections only. It is for sharing locks with
	// programs that do the same.
	StrategyNode Strategy = "node"
)

// Dialect is a way to name the nodes of a queue.
type Dialect string

const (
	// DialectCurator is that of Java's Apache Curator: a mutex is its InterProcessMutex.
	DialectCurator Dialect = "curator"
	// DialectCuratorRW is that of Curator's InterProcessReadWriteLock, for a mutex too: Curator's
	// two locks do not see each other under one path, so it is one or the other.
	DialectCuratorRW Dialect = "curator-rw"
	// DialectKazoo is that of Python's kazoo: Lock, ReadLock and WriteLock.
	DialectKazoo Dialect = "kazoo"
)

// ACL is a choice of access control lists.
type ACL string

const (
	// ACLCreatorOnly lets only holders of this client's identity see and do anything.
	ACLCreatorOnly ACL = "creator"
	// ACLCreatorReadable lets everybody see, and only holders of the identity do.
	ACLCreatorReadable ACL = "read"
	// ACLWorldOpen lets everybody do everything.
	ACLWorldOpen ACL = "open"
)

const (
	defaultRoot           = "/hasp"
	defaultPort           = "2181"
	defaultConnectTimeout = 2 * time.Second
)

// withDefaults returns a checked copy.
func (o *Options) withDefaults() (*Options, error) {
	c := Options{}
	if o != nil {
		c = *o
	}
	setDefault(&c.Root, defaultRoot)
	setDefault(&c.Strategy, StrategyQueue)
	setDefault(&c.Dialect, DialectCurator)
	setDefault(&c.ConnectTimeout, defaultConnectTimeout)
	if c.User != "" {
		setDefault(&c.ACL, ACLCreatorOnly)
	}
	setDefault(&c.ACL, ACLWorldOpen)
	return &c, c.check()
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func (o *Options) check() error {
	if err := checkRoot(o.Root); err != nil {
		return err
	}
	if o.Strategy != StrategyQueue && o.Strategy != StrategyNode {
		return fmt.Errorf("%w: strategy must be %s or %s", driver.ErrInvalid, StrategyQueue, StrategyNode)
	}
	if o.Dialect != DialectCurator && o.Dialect != DialectCuratorRW && o.Dialect != DialectKazoo {
		return fmt.Errorf("%w: dialect must be %s, %s or %s", driver.ErrInvalid, DialectCurator, DialectCuratorRW, DialectKazoo)
	}
	if o.Strategy == StrategyNode && o.Dialect != DialectCurator {
		return fmt.Errorf("%w: strategy %s has no dialects", driver.ErrInvalid, StrategyNode)
	}
	if o.Strategy == StrategyNode && o.ACL == ACLCreatorOnly && o.User == "" {
		return fmt.Errorf("%w: strategy %s with ACL %s needs a user and a password", driver.ErrInvalid, StrategyNode, o.ACL)
	}
	switch o.ACL {
	case ACLWorldOpen:
	case ACLCreatorOnly, ACLCreatorReadable:
		if o.User == "" && (o.TLS == nil || len(o.TLS.Certificates) == 0 && o.TLS.GetClientCertificate == nil) {
			return fmt.Errorf("%w: ACL %s needs an identity: a user and a password, or a client certificate", driver.ErrInvalid, o.ACL)
		}
	default:
		return fmt.Errorf("%w: ACL must be %s, %s or %s", driver.ErrInvalid, ACLCreatorOnly, ACLCreatorReadable, ACLWorldOpen)
	}
	if (o.User == "") != (o.Password == "") || strings.Contains(o.User, ":") {
		return fmt.Errorf("%w: a digest identity has a user, without ':', and a password", driver.ErrInvalid)
	}
	if o.ConnectTimeout < 0 {
		return fmt.Errorf("%w: the connect timeout must be greater than zero", driver.ErrInvalid)
	}
	return nil
}

// checkRoot demands an absolute path in its shortest form, outside of the server's own
// corner.
func checkRoot(root string) error {
	if root == "/" {
		return nil
	}
	if !strings.HasPrefix(root, "/") || root == "/zookeeper" || strings.HasPrefix(root, "/zookeeper/") {
		return fmt.Errorf("%w: the root must be an absolute path outside of /zookeeper", driver.ErrInvalid)
	}
	for component := range strings.SplitSeq(root[1:], "/") {
		if !nodeName(component) {
			return fmt.Errorf("%w: the root is not the path of a node", driver.ErrInvalid)
		}
	}
	return nil
}

// acl is the ACL of the nodes that we make.
func (o *Options) acl() []zk.ACL {
	switch o.ACL {
	case ACLCreatorOnly:
		return zk.AuthACL(zk.PermAll)
	case ACLCreatorReadable:
		return append(zk.AuthACL(zk.PermAll), zk.WorldACL(zk.PermRead)...)
	}
	return zk.WorldACL(zk.PermAll)
}
