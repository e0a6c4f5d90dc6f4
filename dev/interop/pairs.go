package main

import "testing"

// pair is one foreign lock and the store, strategy and dialect that shares it.
type pair struct {
	store  string // for the table: the store and the options to set on our side
	theirs string // the class or command of theirs

	program       program // how the foreign client is run
	library, kind string  // its first two arguments
	server        func(testing.TB) string

	url      string // ours; %s is the server's address
	ourKind  string // "read": hasp's clients are readers
	name     string // of the lock, for hasp
	theirOwn string // and for the others, if it differs

	life  life
	pause int // ms after each round of count, which lets the other side in

	// special is run instead of the steps, with the server's address.
	special func(m *match, server string) error

	// old is the special of a pair whose old version has a particular fault: it shows that.
	old func(m *match, server string) error

	// expect makes a control of it: the named steps, no others, are run, and each must
	// find something.
	expect []string
}

// life says when the lock of a stopped holder ends.
type life int

const (
	renewed life = iota // its lease, which the library renews while it runs
	fixed               // its lease, which is not renewed: work may just take longer
	bound               // nothing: the connection stands
)

func (p pair) theirName() string {
	if p.theirOwn != "" {
		return p.theirOwn
	}
	return p.name
}

func (p pair) title() string {
	return p.store + " + " + p.theirs
}

// Ours. If a server takes a minute to answer, the machine is busy; that is not a fault of the
// locks.
const (
	zkURL       = "zookeeper://%s/locks?connect_timeout=1m"
	setnxURL    = "redis://%s?strategy=setnx&connect_timeout=1m"
	redissonURL = "redis://%s?strategy=redisson&connect_timeout=1m"
	redlockURL  = "redlock://%s?connect_timeout=1m"
	postgresURL = "%s&strategy=advisory&fence=off&connect_timeout=60"
	mariadbURL  = "%s?strategy=getlock&names=plain&fence=off&tls=false&connect_timeout=1m"
)

var pairs = []pair{
	{store: "zookeeper", theirs: "Curator InterProcessMutex", program: java, library: "curator", kind: "mutex",
		server: zookeeperAddr, url: zkURL, name: "curator-mutex"},
	{store: "zookeeper dialect=curator-rw", theirs: "Curator InterProcessReadWriteLock, writers", program: java, library: "curator", kind: "write",
		server: zookeeperAddr, url: zkURL + "&dialect=curator-rw", name: "curator-write"},
	{store: "zookeeper dialect=curator-rw", theirs: "InterProcessReadWriteLock, their readers, our writers", program: java, library: "curator", kind: "read",
		server: zookeeperAddr, url: zkURL + "&dialect=curator-rw", name: "curator-read"},
	{store: "zookeeper dialect=curator-rw", theirs: "InterProcessReadWriteLock, their writers, our readers", program: java, library: "curator", kind: "write",
		server: zookeeperAddr, url: zkURL + "&dialect=curator-rw", ourKind: "read", name: "curator-our-read"},
	{store: "zookeeper dialect=kazoo", theirs: "kazoo Lock", program: python, library: "kazoo", kind: "Lock",
		server: zookeeperAddr, url: zkURL + "&dialect=kazoo", name: "kazoo-lock"},
	{store: "zookeeper dialect=kazoo", theirs: "kazoo ReadLock, our writers", program: python, library: "kazoo", kind: "ReadLock",
		server: zookeeperAddr, url: zkURL + "&dialect=kazoo", name: "kazoo-read", old: (*match).readersWaitBehind},
	{store: "zookeeper dialect=kazoo", theirs: "kazoo WriteLock, our readers", program: python, library: "kazoo", kind: "WriteLock",
		server: zookeeperAddr, url: zkURL + "&dialect=kazoo", ourKind: "read", name: "kazoo-our-read"},
	{store: "zookeeper", theirs: "go-zookeeper Lock", program: golang, library: "go-zookeeper", kind: "-",
		server: zookeeperAddr, url: zkURL, name: "go-zookeeper"},

	{store: "redis strategy=redisson", theirs: "Redisson RLock, watchdog", program: java, library: "redisson", kind: "plain",
		server: redisAddr, url: redissonURL, name: "redisson-plain"},
	{store: "redis strategy=redisson", theirs: "Redisson RLock, reentrant", program: java, library: "redisson", kind: "reentrant",
		server: redisAddr, url: redissonURL, name: "redisson-reentrant"},
	{store: "redis strategy=redisson", theirs: "Redisson tryLock with a lease", program: java, library: "redisson", kind: "lease",
		server: redisAddr, url: redissonURL, name: "redisson-lease", life: fixed},
	{store: "redis strategy=setnx", theirs: "redis-py Lock", program: python, library: "redis-py", kind: "-",
		server: redisAddr, url: setnxURL, name: "redis-py", life: fixed, pause: 5},
	{store: "redis strategy=setnx", theirs: "redsync Mutex", program: golang, library: "redsync", kind: "-",
		server: redisAddr, url: setnxURL, name: "redsync", life: fixed, pause: 5},
	{store: "redis strategy=setnx", theirs: "bsm/redislock", program: golang, library: "bsm", kind: "-",
		server: redisAddr, url: setnxURL, name: "bsm", life: fixed, pause: 5},
	{store: "redis strategy=setnx", theirs: "node-redlock, one server", program: node, library: "redlock", kind: "-",
		server: redisAddr, url: setnxURL, name: "node-redlock", life: fixed, pause: 5},
	{store: "redlock, five servers", theirs: "redsync Mutex", program: golang, library: "redsync", kind: "-",
		server: fiveRedisAddrs, url: redlockURL, name: "redsync-5", life: fixed, pause: 5},
	{store: "redlock, five servers", theirs: "node-redlock", program: node, library: "redlock", kind: "-",
		server: fiveRedisAddrs, url: redlockURL, name: "node-redlock-5", life: fixed, pause: 5},

	{store: "etcd", theirs: "etcdctl lock", program: golang, library: "etcdctl", kind: "-",
		server: etcdAddr, url: "etcd://%s", name: "etcdctl", theirOwn: "hasp/etcdctl"},
	{store: "etcd", theirs: "concurrency.Mutex", program: golang, library: "concurrency", kind: "-",
		server: etcdAddr, url: "etcd://%s", name: "concurrency", theirOwn: "hasp/concurrency"},

	{store: "postgres strategy=advisory key=integer", theirs: "psql, pg_advisory_lock", program: golang, library: "psql", kind: "-",
		server: postgresServer, url: postgresURL + "&key=integer", name: "42", life: bound},
	{store: "postgres strategy=advisory key=migrate", theirs: "golang-migrate, pgx driver", program: golang, library: "migrate", kind: "-",
		server: postgresServer, url: postgresURL + "&key=migrate", name: "/postgres/public/schema_migrations", life: bound},
	{store: "postgres strategy=advisory key=rails", theirs: "psycopg, the rule of Rails' migrations", program: python, library: "psycopg", kind: "-",
		server: postgresServer, url: postgresURL + "&key=rails", name: "postgres", life: bound},
	{store: "mysql strategy=getlock names=plain", theirs: "mariadb, GET_LOCK", program: golang, library: "mariadb", kind: "-",
		server: mariadbServer, url: mariadbURL, name: "getlock", life: bound},
}

// controls are broken on purpose. A run in which the check does not catch each of them
// proves nothing.
var controls = []pair{
	{store: "control: redis strategy=setnx", theirs: "redsync, another name", program: golang, library: "redsync", kind: "-",
		server: redisAddr, url: setnxURL, name: "one-name", theirOwn: "another-name", life: fixed,
		expect: []string{"exclusion", "tries", "theirs wake ours", "ours wake theirs"}},
	{store: "control: redis strategy=setnx", theirs: "a client that does not lock", program: golang, library: "blind", kind: "-",
		server: redisAddr, url: setnxURL, name: "blind", life: fixed,
		expect: []string{"exclusion", "tries", "theirs wake ours", "ours wake theirs"}},
	{store: "control: redis strategy=setnx", theirs: "a client that unlocks by DEL alone", program: golang, library: "blunt", kind: "-",
		server: redisAddr, url: setnxURL, name: "blunt", life: fixed,
		expect: []string{"theirs overrun"}},
}
