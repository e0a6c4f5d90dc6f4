package kubelock

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/hasplock/hasp/caslock"
	"github.com/hasplock/hasp/driver"
)

// store is a namespace as caslock needs it.
type store struct {
	namespace, host string
	client          *rest.RESTClient // reads and writes
	watches         *rest.RESTClient
	refused         atomic.Pointer[time.Time] // when a request was refused twice
}

// silent keeps the library from writing to stderr about requests that were given up.
func silent(ctx context.Context) context.Context { return logr.NewContext(ctx, logr.Discard()) }

func (s *store) String() string {
	host := s.host
	if u, err := url.Parse(s.host); err == nil && u.Host != "" {
		host = u.Host
	}
	return fmt.Sprintf("kube %s/%s", host, s.namespace)
}

// Close ends the connections that are idle; the others end with their requests.
func (s *store) Close() error {
	for _, c := range []*rest.RESTClient{s.client, s.watches} {
		utilnet.CloseIdleConnectionsFor(c.Client.Transport) // http.Client's does not see through the wrappers
	}
	return nil
}

// on is a request about Leases. The library repeats none of them: a write that is sent twice may
// find itself.
func (s *store) on(c *rest.RESTClient, verb, name string) *rest.Request {
	r := c.Verb(verb).Namespace(s.namespace).Resource("leases").MaxRetries(0)
	if name != "" {
		r = r.Name(name)
	}
	return r
}

// Load reads from etcd, not from the API server's cache: no resourceVersion is given.
func (s *store) Load(ctx context.Context, name string) (caslock.Record, caslock.Version, error) {
	l := &coordination.Lease{}
	err := s.again(ctx, func() error { return s.on(s.client, http.MethodGet, objectName(name)).Do(silent(ctx)).Into(l) })
	if apierrors.IsNotFound(err) && answered(err) {
		return caslock.Record{}, caslock.Absent, nil
	}
	if err != nil {
		return caslock.Record{}, caslock.Absent, s.explain(ctx, err)
	}
	return read(l)
}

func read(l *coordination.Lease) (caslock.Record, caslock.Version, error) {
	r, err := record(l)
	if err != nil {
		return r, caslock.Absent, err
	}
	v, err := version(l)
	return r, v, err
}

func (s *store) Swap(ctx context.Context, r caslock.Record, old caslock.Version) (caslock.Version, error) {
	name := objectName(r.Name)
	request, before := func() *rest.Request { return s.on(s.client, http.MethodPost, "") }, &coordination.Lease{}
	if old == caslock.Absent {
		before.Name, before.Namespace = name, s.namespace
	} else {
		var err error
		if before, err = leaseOf(old); err != nil {
			return caslock.Absent, err
		}
		request = func() *rest.Request { return s.on(s.client, http.MethodPut, name) }
	}
	now, next := &coordination.Lease{}, lease(r, before)
	err := s.again(ctx, func() error { return request().Body(next).Do(silent(ctx)).Into(now) })
	switch {
	case (apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)) && answered(err):
		return caslock.Absent, caslock.ErrConflict
	case apierrors.IsNotFound(err) && answered(err) && old != caslock.Absent && !s.noNamespace(err):
		return caslock.Absent, caslock.ErrConflict // it was deleted meanwhile
	case err != nil:
		return caslock.Absent, s.explain(ctx, err)
	}
	return version(now)
}

// again makes a request, and makes it again if it is refused, which means that it was not done. After
// a second if it is forbidden: an API server that has started just now forbids what it allows when it
// has read its roles (80 ms later). At once if the credentials are: their file is read anew then.
// Where it is refused again, the next requests are told at once.
func (s *store) again(ctx context.Context, request func() error) error {
	err := request()
	last := s.refused.Load()
	if !refused(err) || last != nil && time.Since(*last) < time.Minute {
		return err
	}
	if apierrors.IsForbidden(err) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
	if err = request(); refused(err) {
		now := time.Now()
		s.refused.Store(&now)
	}
	return err
}

func refused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

func (s *store) page(ctx context.Context, c *rest.RESTClient, o *meta.ListOptions) (*coordination.LeaseList, error) {
	page := &coordination.LeaseList{}
	err := s.on(c, http.MethodGet, "").VersionedParams(o, parameters()).Do(silent(ctx)).Into(page)
	return page, s.explain(ctx, err)
}

// listed is how many Leases one request reads.
const listed = 500

// List yields those of other prefixes as well, as s3lock's does.
func (s *store) List(ctx context.Context, _ string, yield func(caslock.Record, caslock.Version) bool) error {
	var other error // a record of another format: not to be taken for a free lock
	for next := ""; ; {
		page, err := s.page(ctx, s.client, &meta.ListOptions{Limit: listed, Continue: next})
		if err != nil {
			return err
		}
		for i := range page.Items {
			r, v, err := read(&page.Items[i])
			if errors.Is(err, driver.ErrInvalid) {
				other = err
			}
			if err != nil || objectName(r.Name) != page.Items[i].Name {
				continue // another program's
			}
			if !yield(r, v) {
				return nil
			}
		}
		if next = page.Continue; next == "" {
			return other
		}
	}
}

// Watch is watch, with a pause after a failure: a server that is away, or has had enough, is not
// asked ten times a second by each who waits; and without the right to watch this is polling.
func (s *store) Watch(ctx context.Context, name string, changed func(caslock.Record, caslock.Version)) error {
	err := s.watch(ctx, name, changed)
	if !errors.Is(err, errWatchEnded) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return err
}

const pause = time.Second

// watch lists first, and watches from there: an object that does not exist has no event to begin
// with.
func (s *store) watch(ctx context.Context, name string, changed func(caslock.Record, caslock.Version)) error {
	object := objectName(name)
	only := meta.ListOptions{FieldSelector: "metadata.name=" + object}
	page, err := s.page(ctx, s.watches, &only)
	if err != nil {
		return err
	}
	// A Lease that hasp does not understand tells nothing: a client that wants the lock is refused when
	// it asks, and a watch that ended here would be begun again at once, and so on.
	tell := func(l *coordination.Lease) {
		if r, v, err := read(l); err == nil {
			changed(r, v)
		}
	}
	if len(page.Items) > 0 {
		tell(&page.Items[0])
	} else {
		changed(caslock.Record{Name: name}, caslock.Absent)
	}
	only.Watch, only.ResourceVersion = true, page.ResourceVersion
	w, err := s.on(s.watches, http.MethodGet, "").VersionedParams(&only, parameters()).Watch(silent(ctx))
	if err != nil {
		return s.explain(ctx, err)
	}
	defer w.Stop()
	for {
		select {
		case e := <-w.ResultChan():
			switch l, isLease := e.Object.(*coordination.Lease); {
			case !isLease: // it has ended, or is an error, of a revision that is compacted say: list anew
				return errWatchEnded
			case e.Type == watch.Deleted:
				changed(caslock.Record{Name: name}, caslock.Absent)
			default:
				tell(l)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

var errWatchEnded = errors.New("the watch has ended")

// Delete is for free Leases of hasp's that were not used for a retention.
func (s *store) Delete(ctx context.Context, name string, old caslock.Version) error {
	l, err := leaseOf(old)
	if err != nil {
		return err
	}
	o := &meta.DeleteOptions{Preconditions: &meta.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion}}
	return s.explain(ctx, s.on(s.client, http.MethodDelete, objectName(name)).Body(o).Do(silent(ctx)).Error())
}

// answered reports whether the API server itself has said so. What has no Status in its body is a
// balancer's, and says nothing of the object.
func answered(err error) bool {
	return !apierrors.HasStatusCause(err, meta.CauseTypeUnexpectedServerResponse)
}

func (s *store) noNamespace(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "namespaces"
}

// explain gives the client library's errors the words and the sentinels of hasp's.
func (s *store) explain(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	wrap := func(kind error, text string) error { return fmt.Errorf("%w: %s: %s", kind, s, text) }
	switch {
	case errors.Is(err, context.DeadlineExceeded): // ours, not the caller's
		return fmt.Errorf("%s: no answer in time", s)
	case s.noNamespace(err):
		return wrap(driver.ErrInvalid, "there is no such namespace: kubectl create namespace "+s.namespace)
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "being terminated"):
		return wrap(driver.ErrRefused, "the namespace is being deleted")
	case apierrors.IsForbidden(err):
		return wrap(driver.ErrRefused, "no permission: the Role needs get, list, watch, create, update and delete of leases in coordination.k8s.io (docs/backends/kubernetes.md has it)")
	case apierrors.IsUnauthorized(err):
		return wrap(driver.ErrRefused, "the credentials are refused")
	case apierrors.IsInvalid(err):
		return fmt.Errorf("%w: %s: %w", driver.ErrRefused, s, err)
	}
	return fmt.Errorf("%s: %w", s, err)
}
