package kubelock

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hasplock/hasp/caslock"
	"github.com/hasplock/hasp/driver"
)

// annotation has the record of caslock. It survives the writes of client-go, so it counts only
// while it names the present holder.
const annotation = "hasplock.github.io/record"

// identityMark begins the holderIdentity of ours; the entry's ID follows.
const identityMark = "hasp/"

// hashMark begins the object's name where the lock's name is not allowed as one, or begins with
// this mark itself.
const hashMark = "hasp-"

// objectName is the Lease of a lock. A name that Kubernetes allows stands for itself, so that hasp
// contends with the controller that elects by it; any other is hashed, and stands whole in the
// annotation.
func objectName(name string) string {
	if isObjectName(name) && !strings.HasPrefix(name, hashMark) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return hashMark + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]))
}

// isObjectName reports whether Kubernetes takes the name for an object: a DNS subdomain (RFC 1123).
func isObjectName(name string) bool {
	if name == "" || len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
	}
	return !strings.ContainsFunc(name, func(r rune) bool {
		return !('a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '-' || r == '.')
	})
}

// record has what a Lease says.
func record(l *coordination.Lease) (caslock.Record, error) {
	if l.Spec.Strategy != nil || l.Spec.PreferredHolder != nil || len(l.OwnerReferences) > 0 {
		return caslock.Record{}, fmt.Errorf("%w: the Lease %q is used otherwise: it has a strategy, a preferred holder or an owner", driver.ErrMismatch, l.Name)
	}
	r := caslock.Record{Name: l.Name}
	if text, ours := l.Annotations[annotation]; ours {
		var err error
		if r, err = caslock.Decode([]byte(text)); err != nil {
			return r, fmt.Errorf("%w (annotation of the Lease %q)", err, l.Name)
		}
	}
	holder := value(l.Spec.HolderIdentity)
	switch {
	case r.ID != "" && holder == identityMark+r.ID:
		return r, nil
	case holder == "" && r.ID == "":
		r.Renewed = value(l.Spec.RenewTime).Time
		return r, nil
	}
	// Another program holds, or has released since; what is ours is the last token and note.
	other := caslock.Record{
		Name: r.Name, ID: holder, Owner: holder, Token: r.Token, Note: r.Note, Foreign: holder != "",
		TTL: time.Duration(value(l.Spec.LeaseDurationSeconds)) * time.Second, Renewed: value(l.Spec.RenewTime).Time,
	}
	return other, nil
}

// lease is the Lease of a record, in the place of old; labels, annotations of others and the uid
// stay.
func lease(r caslock.Record, old *coordination.Lease) *coordination.Lease {
	l := old.DeepCopy()
	l.Annotations = maps.Clone(l.Annotations)
	if l.Annotations == nil {
		l.Annotations = map[string]string{}
	}
	l.Annotations[annotation] = string(r.Encode())
	holder, seconds := "", int32(1) // 0 is invalid
	if r.ID != "" {
		holder, seconds = identityMark+r.ID, int32((r.TTL+time.Second-1)/time.Second)
	}
	renewed := meta.NewMicroTime(r.Renewed)
	if before := value(l.Spec.HolderIdentity); holder != before && holder != "" {
		transitions := value(l.Spec.LeaseTransitions)
		if transitions++; transitions < 0 { // 2^31 of them, or written by hand: the server refuses what is negative
			transitions = 0
		}
		l.Spec.AcquireTime, l.Spec.LeaseTransitions = &renewed, &transitions
	}
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = &holder, &seconds, &renewed
	return l
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// A Version is the Lease that was read, so that a write keeps what others have put on it, and
// carries uid and resourceVersion: a Lease may be created by PUT, and the resourceVersion of one
// that does not exist is ignored.
func version(l *coordination.Lease) (caslock.Version, error) {
	l = l.DeepCopy()
	l.ManagedFields = nil // the server keeps them
	text, err := json.Marshal(l)
	return caslock.Version(text), err
}

func leaseOf(v caslock.Version) (*coordination.Lease, error) {
	l := &coordination.Lease{}
	return l, json.Unmarshal([]byte(v), l)
}

// Number is the resourceVersion, the revision of the cluster's etcd: one for all objects, so it
// grows over deletions.
func (s *store) Number(v caslock.Version) (uint64, error) {
	l, err := leaseOf(v)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(l.ResourceVersion, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: this cluster's resourceVersions are no numbers, so they make no fencing tokens", driver.ErrUnsupported)
	}
	return n, nil
}
