//go:build !noserve && !fileonly

package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/audit"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/files"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/hasplock/hasp/internal/signals"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func init() { optionalVerbs = append(optionalVerbs, verb{"serve", (*app).serveCommand}) }

type serveFlags struct {
	storeFlags
	listen, log, audit string
	files              files.Files
	drain, ttl, maxTTL duration
	behindTLS          bool
	limits             serve.Limits
}

func (a *app) serveCommand() *cobra.Command {
	f := serveFlags{
		drain: duration{d: 10 * time.Second, min: time.Millisecond}, ttl: duration{d: 10 * time.Second, min: time.Millisecond},
		maxTTL: duration{d: serve.Defaults.TTL, min: time.Millisecond},
	}
	c := &cobra.Command{
		Use:   "serve [flags]",
		Short: "serve a store's locks over HTTP, to programs in any language",
		Long: `Serve the locks of a store over HTTP and JSON: to curl, to any language, and to
hasp and Go programs with --store hasp+http://127.0.0.1:7070. docs/SERVE.md
describes the requests, and GET /v1/openapi.json does so for programs. In a browser
the same address shows who holds what, to look at and to operate.

The server keeps nothing: locks are in the store, with the leases that clients
keep alive through the server. One that dies frees no lock. Its clients go on at
another one of the same store, and at most of the stores with what they hold. The
store must have leases: redis, etcd, zookeeper, s3, kube, or a table of a database.
Others are refused (78).

Without --tokens everybody who can reach the address may do everything; so any
other address than this machine's needs --tokens, --cert and --key. A file of
tokens has lines of name, rights, prefix of names, and hash; hasp serve token
adds one. With --client-ca every connection needs a certificate of that authority
(mutual TLS), and a line that ends in cert:COMMON-NAME gives its rights to one.

--config names a file of settings in the form of hasp config ("listen = :7070"),
which is then read in place of the user's and the system's.

Files of tokens and certificates are read again when they change, and on HUP. One
that cannot be used changes nothing, and the log says so. They must not be writable
by others, and the key not be readable by all.

--audit appends a line for each grant, release, loss and eviction. No lock waits for
the file: what a slow or full disk does not take is dropped and counted. To rotate
it, rename it: the next line makes another.

/healthz answers as long as the server does, /readyz until it is told to end, and
/metrics is for Prometheus. INT or TERM ends it, with exit code 0: new sessions
and locks are refused from then on, clients go on at another server, and for as
long as --drain locks are kept alive and released. What is held longer stays in
the store until its TTL is over, and its holder is told that it is lost.`,
		Example: `  hasp serve --store redis://cache.example.com
  hasp run --store hasp+http://127.0.0.1:7070 nightly-report -- ./report.sh
  hasp serve --listen :7070 --tokens tokens --cert cert.pem --key key.pem`,
	}
	f.register(c.Flags())
	a.verb(c, with(noWord, func(string) error { return a.serveStore(&f) }))
	c.AddCommand(a.serveTokenCommand())
	return c
}

func (f *serveFlags) register(fs *pflag.FlagSet) {
	f.store.Add(fs)
	fs.StringVar(&f.listen, "listen", "127.0.0.1:7070", "the `ADDRESS` to listen at; port 0 takes a free one")
	fs.StringVar(&f.files.Tokens, "tokens", "", "the `FILE` of tokens, which must not be writable by others")
	fs.StringVar(&f.files.Cert, "cert", "", "the `FILE` with the server's certificate, in PEM")
	fs.StringVar(&f.files.Key, "key", "", "the `FILE` with its key")
	fs.StringVar(&f.files.ClientCA, "client-ca", "", "the `FILE` with the authorities of clients' certificates, in PEM: each connection needs one")
	fs.String("config", "", "the `FILE` of settings to read, and no other")
	fs.StringVar(&f.log, "log", "text", "a line for each request on standard error, as text or json; or off (`FORM`)")
	fs.StringVar(&f.audit, "audit", "", "the `FILE` to append a line of JSON to for each grant, release, loss and eviction")
	fs.Var(&f.drain, "drain", "how long locks are kept alive after a signal to end")
	fs.Var(&f.ttl, "ttl", "the TTL of all clients at a store that can forget (redis): after a restart it grants nothing for so long")
	fs.Var(&f.maxTTL, "max-ttl", "the longest TTL that a client may ask for")
	fs.BoolVar(&f.behindTLS, "behind-tls", false, "a proxy in front of the server ends TLS: browsers send the page's cookie over TLS only")
	fs.IntVar(&f.limits.Sessions, "max-sessions", serve.Defaults.Sessions, "`N` sessions of a token at most")
	fs.IntVar(&f.limits.Locks, "max-locks", serve.Defaults.Locks, "`N` locks of a token at most")
	fs.IntVar(&f.limits.Waiting, "max-waiting", serve.Defaults.Waiting, "`N` waiting locks of a token at most")
	fs.IntVar(&f.limits.Rate, "max-rate", serve.Defaults.Rate, "`N` requests a second of a token at most, besides new sessions, keep-alives and releases; 0 for any")
}

// serverLog is the log of requests.
func (a *app) serverLog(form string) (*slog.Logger, error) {
	switch form {
	case "text":
		return slog.New(slog.NewTextHandler(a.stderr, nil)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(a.stderr, nil)), nil
	case "off":
		return slog.New(slog.DiscardHandler), nil
	}
	return nil, exit.Usage("--log is text, json or off")
}

// check looks at what needs no store.
func (f *serveFlags) check() (*access.Tokens, error) {
	host, _, err := net.SplitHostPort(f.listen)
	switch {
	case err != nil:
		return nil, exit.Usage("--listen: %s is not an address such as 127.0.0.1:7070", view.Quote(f.listen))
	case (f.files.Cert == "") != (f.files.Key == ""):
		return nil, exit.Usage("--cert and --key belong together")
	case f.files.ClientCA != "" && f.files.Cert == "":
		return nil, exit.Usage("--client-ca needs --cert and --key: a client shows its certificate over TLS")
	case f.limits.Sessions < 1 || f.limits.Locks < 1 || f.limits.Waiting < 1 || f.limits.Rate < 0:
		return nil, exit.Usage("--max-sessions, --max-locks and --max-waiting must be greater than zero, and --max-rate not less")
	case !onlyHere(host) && (f.files.Tokens == "" || f.files.Cert == ""):
		return nil, exit.Misconfigured("--listen %s can be reached from other machines, and then --tokens, --cert and --key are needed: who can ask the server can take and free locks", view.Quote(f.listen))
	}
	tokens, err := f.files.Read()
	if err != nil {
		return nil, exit.Misconfigured("%w", err)
	}
	return tokens, nil
}

func (a *app) serveStore(f *serveFlags) error {
	tokens, err := f.check()
	if err != nil {
		return err
	}
	log, err := a.serverLog(f.log)
	if err != nil {
		return err
	}
	var trail *audit.Log
	if f.audit != "" {
		if trail, err = audit.Open(f.audit, log); err != nil {
			return exit.Misconfigured("--audit: %w", err)
		}
		defer trail.Close()
	}
	sigs := signals.Catch()
	defer sigs.Close()
	sigs.Again = make(chan struct{}, 1)
	ctx, stop := sigs.Until(context.Background())
	defer func() { _ = stop() }() // it was seen by ctx
	open, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	client, err := a.open(open, &f.storeFlags)
	if err != nil {
		return err
	}
	defer client.Close()
	f.limits.TTL = f.maxTTL.d
	s, err := serve.New(serve.Options{Store: client.Backend(), Tokens: tokens, Log: log, Audit: trail, Limits: f.limits, TTL: f.ttl.d, BehindTLS: f.behindTLS})
	if err != nil {
		return exit.Of(err)
	}
	defer s.Close()
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		return exit.Misconfigured("--listen: %w", err)
	}
	go f.files.Follow(ctx, sigs.Again, log, s.SetTokens)
	secure, scheme := f.files.TLS(), "http"
	if secure != nil {
		scheme = "https"
	}
	a.tell(fmt.Sprintf("locks of %s at %s://%s", client.Backend(), scheme, l.Addr()))
	if err := s.Serve(ctx, l, secure, f.drain.d); err != nil {
		return &exit.Failure{Code: exit.CodeInternal, Outcome: exit.OutcomeInternal, Err: fmt.Errorf("serve: %w", err)}
	}
	return nil
}

func (a *app) serveTokenCommand() *cobra.Command {
	var file, rights, prefix string
	c := &cobra.Command{
		Use:   "token --tokens FILE [flags] NAME",
		Short: "make a token for hasp serve",
		Long: `Draw a token for NAME, add its line to the file of tokens, and print the token.
The file has only its hash: it cannot be shown again. A server that runs reads the
file again within seconds, or at once on HUP; a token whose line is removed does
not work any more.

Rights are look (read queues and names), lock (acquire, release), and operate
(release --force, take leases over, doctor); none includes another. To give one
token different rights for another prefix, copy its line and change it.`,
		Example: `  hasp serve token --tokens tokens --rights look,lock --prefix deploy/ ci
  hasp who --store "hasp+https://TOKEN@locks.example.com" deploy/web`,
	}
	fs := c.Flags()
	fs.StringVar(&file, "tokens", "", "the `FILE` of tokens; made if it does not exist")
	fs.StringVar(&rights, "rights", "look,lock", "what the token may do: look, lock, operate (`LIST`)")
	fs.StringVar(&prefix, "prefix", "", "only with names that begin with `PREFIX`")
	return a.verb(c, func(_ *cobra.Command, args []string) error {
		if len(args) != 1 || file == "" {
			return exit.Usage("serve token takes one name, and --tokens: hasp serve token --tokens FILE NAME")
		}
		token, line, err := access.New(args[0], rights, prefix)
		if err != nil {
			return exit.Usage("%v", err)
		}
		if err := files.AddToken(file, args[0], line); err != nil {
			return exit.Misconfigured("--tokens: %w", err)
		}
		_, err = fmt.Fprintln(a.stdout, token)
		return err
	})
}

// onlyHere reports an address that other machines cannot reach.
func onlyHere(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}
