package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/doctor"
)

// Warnings has none: what may be wrong takes more than a request or two.
func (*Backend) Warnings(context.Context) ([]driver.Finding, error) { return nil, nil }

// Diagnose looks at what etcd's promises depend on. It writes nothing but one lease
// without keys, which it revokes.
//
// Clocks are not looked at: etcd's leader measures a lease by its own monotonic clock, hasp
// measures trust by its own, and the two are never compared.
func (b *Backend) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	d := &diagnosis{b: b, ctx: ctx, m: clientv3.NewMaintenance(b.client)}
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var members *clientv3.MemberListResponse
	err := pastLearners(func() (err error) {
		// Serializable, that is as far as the member itself knows: a cluster without a leader,
		// which nothing else can be had from, is the one that most needs to be examined.
		members, err = clientv3.NewCluster(b.client).MemberList(bounded, clientv3.WithSerializable())
		return err
	})
	if err != nil {
		return nil, explain(ctx, "list the members", err)
	}
	if err := b.checkFormat(ctx, false); errors.Is(err, driver.ErrInvalid) {
		d.Add(driver.Bad, "format", err.Error(), "one version of hasp for all clients of a prefix")
	}
	d.lease()
	d.members(members.Members)
	if !d.proxied {
		d.topology(members.Members)
	}
	d.alarms()
	d.rights()
	return d.Found, ctx.Err()
}

type diagnosis struct {
	doctor.Report
	b   *Backend
	ctx context.Context
	m   clientv3.Maintenance

	answered map[uint64]bool // members, by id
	checked  bool            // some member checks rights with each renewal, see rights
	proxied  bool            // a proxy answers in the place of members
}

// statuses asks each configured endpoint, on a separate connection, all at once: one
// that is down takes as long as patience lasts.
func (d *diagnosis) statuses() (all []*clientv3.StatusResponse, errs []error) {
	endpoints := d.b.client.Endpoints()
	all, errs = make([]*clientv3.StatusResponse, len(endpoints)), make([]error, len(endpoints))
	ctx, cancel := context.WithTimeout(d.ctx, patience)
	defer cancel()
	var wg sync.WaitGroup
	for i, endpoint := range endpoints {
		wg.Go(func() { all[i], errs[i] = d.m.Status(ctx, endpoint) })
	}
	wg.Wait()
	return all, errs
}

// members tells of each configured endpoint, and whether they agree.
func (d *diagnosis) members(known []*pb.Member) {
	names := map[uint64]string{}
	for _, m := range known {
		names[m.ID] = m.Name
	}
	d.answered = map[uint64]bool{}
	versions := map[string]bool{}
	leaders := map[uint64]bool{}
	all, errs := d.statuses()
	for i, s := range all {
		if errs[i] != nil {
			d.Add(driver.Warn, "member", fmt.Sprintf("%s does not answer: %v", label(d.b.client.Endpoints()[i:i+1]), explain(d.ctx, "report", errs[i])),
				"start it, or take it out of the URL; two of three must be there at any time")
			continue
		}
		d.answered[s.Header.MemberId] = true
		versions[s.Version] = true
		leaders[s.Leader] = true
		d.member(cmp.Or(names[s.Header.MemberId], strconv.FormatUint(s.Header.MemberId, 16)), s)
	}
	for _, v := range slices.Sorted(maps.Keys(versions)) {
		d.version(v)
	}
	delete(leaders, 0)
	if !d.proxied {
		d.When(len(leaders) > 1, driver.Warn, "leader", "the members do not agree who leads",
			"look again; if it stays, the endpoints are of different clusters or cut off from each other")
		for id := range leaders {
			d.Else("leader", names[id])
		}
	}
}

func (d *diagnosis) member(name string, s *clientv3.StatusResponse) {
	if s.Leader == 0 {
		d.Add(driver.Bad, "leader", "member "+name+" knows no leader: nothing can be locked or renewed through it",
			"start enough members for a majority, and see whether they reach each other")
	}
	if s.IsLearner {
		d.Add(driver.Warn, "member", "member "+name+" is a learner and serves no locks", "take it out of the URL")
	}
	for _, e := range s.Errors {
		// Alarms are told below, with what to do.
		if !strings.Contains(e, "NOSPACE") && !strings.Contains(e, "CORRUPT") && !strings.Contains(e, "no leader") {
			d.Add(driver.Warn, "member", "member "+name+" reports: "+e, "see the member's log")
		}
	}
	// Members before 3.6 do not tell their quota; etcd's default is 2 GiB.
	quota, of := s.DbSizeQuota, "quota"
	if quota <= 0 {
		quota, of = 2<<30, "default quota (the server does not tell its own)"
	}
	used := 100 * s.DbSize / quota
	level, cure := driver.Info, ""
	if used >= 80 {
		level, cure = driver.Warn, "turn auto-compaction on, defragment, raise quota-backend-bytes: when it is full, nothing can be locked"
	}
	d.Add(level, "db size", fmt.Sprintf("member %s: %d MiB, %d %% of the %s of %d MiB", name, s.DbSize>>20, used, of, quota>>20), cure)
}

func (d *diagnosis) version(v string) {
	var n [3]int
	_, err := fmt.Sscanf(v, "%d.%d.%d", &n[0], &n[1], &n[2])
	d.checked = d.checked || n[0] > 3 || n[0] == 3 && n[1] >= 7
	old := func(major, minor, patch int) bool { return n[0] == major && n[1] == minor && n[2] < patch }
	switch {
	case err == nil && (n[0] < 3 || n[0] == 3 && n[1] < 4):
		d.Add(driver.Bad, "version", "etcd "+v+" lacks what hasp needs", "use etcd 3.4 or newer")
	case err == nil && (old(3, 4, 31) || old(3, 5, 13)):
		d.Add(driver.Warn, "version", "etcd "+v+": a leader whose disk hangs may revoke leases that have been renewed with the next leader "+
			"(etcd issue 15247): locks can be lost before their time", "upgrade to 3.4.31, 3.5.13, 3.6 or newer")
	default:
		d.Add(driver.Info, "version", "etcd "+v, "")
	}
}

func (d *diagnosis) topology(members []*pb.Member) {
	voters, here := 0, 0
	for _, m := range members {
		if !m.IsLearner {
			voters++
			if d.answered[m.ID] {
				here++
			}
		}
	}
	const subject = "topology"
	text := fmt.Sprintf("%d members, %d of them answer here", voters, here)
	d.When(voters == 1, driver.Warn, subject, "one member: while it is down, no client gets or keeps a lock", "run three members")
	d.When(here == 1 && len(d.b.client.Endpoints()) == 1, driver.Warn, subject, text+": no other is configured, so its failure is that of the locks",
		"name all members in the URL, with commas between")
	d.When(here <= voters/2, driver.Warn, subject, text+", which is no majority", "start or configure the others")
	d.Else(subject, text)
}

func (d *diagnosis) alarms() {
	ctx, cancel := context.WithTimeout(d.ctx, patience)
	defer cancel()
	var resp *clientv3.AlarmResponse
	err := pastLearners(func() (err error) {
		resp, err = d.m.AlarmList(ctx)
		return err
	})
	if err != nil {
		d.Else("alarms", fmt.Sprintf("cannot be read: %v", explain(d.ctx, "list alarms", err)))
		return
	}
	for _, a := range resp.Alarms {
		text, cure := fmt.Sprintf("%s on member %x", a.Alarm, a.MemberID), "replace the member"
		if a.Alarm == pb.AlarmType_NOSPACE {
			text, cure = text+": nothing can be locked; held locks are renewed and released", "compact, defragment, then etcdctl alarm disarm"
		}
		d.Add(driver.Bad, "alarms", text, cure)
	}
	d.Else("alarms", "none")
}

// lease sees what TTL is granted at least.
func (d *diagnosis) lease() {
	s, granted, err := d.b.Open(d.ctx, driver.SessionOptions{TTL: minTTL, Gone: func(string, error) {}})
	if err != nil {
		level := driver.Bad
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			level = driver.Warn
		}
		d.Add(level, "lease", fmt.Sprintf("no lease is granted: %v", err),
			"see what else is said here: without a leader, with a full disk or without the right to write there is none")
		return
	}
	d.When(granted > minTTL, driver.Warn, "lease", fmt.Sprintf("the shortest TTL granted is %s: a shorter one is lengthened, and a crashed holder blocks others that long", granted),
		"lower the servers' election-timeout, or ask for at least this TTL")
	d.Else("lease", fmt.Sprintf("TTLs are granted as asked for, in whole seconds from %s on, and start anew when the leader changes", granted))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), time.Second)
	defer cancel()
	_, _ = s.KeepAlive(ctx) // which finds a proxy; others have said what is wrong
	d.proxied = s.(*session).proxied.Load()
	d.When(d.proxied, driver.Warn, "proxy", "etcd grpc-proxy renews leases by itself: a renewal takes up to half a second, so that no TTL should be shorter than 5s, "+
		"and a client that is cut off during one can block others for two TTLs", "name the members in the URL, or see docs/backends/etcd.md for what is different")
	_ = s.Close(ctx) // without an answer it runs out by itself
}

// rights looks whether the user may write all under the prefix, or parts of it. Since 3.7 etcd
// renews a lease only for users that may write every key on it, and all locks of a client are
// on one. So a user that has rights by parts, and loses one of them, loses all locks with it.
//
// A lease for each part would keep the others. But a client does not know the parts: it would have
// to read its user's roles, again and again, or have a lease, a renewal and a watch stream for each
// name. A client for each part does the same, and the administrator who grants the rights knows
// them.
//
// A user may read its own roles. One that is known by its certificate alone has no name
// here.
func (d *diagnosis) rights() {
	name := d.b.client.Username
	if !d.checked || name == "" {
		return
	}
	ctx, cancel := context.WithTimeout(d.ctx, patience)
	defer cancel()
	auth := clientv3.NewAuth(d.b.client)
	user, err := auth.UserGet(ctx, name)
	if err != nil {
		d.Else("rights", fmt.Sprintf("cannot be read: %v", explain(d.ctx, "show the user", err)))
		return
	}
	whole := slices.Contains(user.Roles, "root")
	for _, r := range user.Roles {
		role, err := auth.RoleGet(ctx, r)
		whole = whole || err == nil && slices.ContainsFunc(role.Perm, d.b.covers)
	}
	d.When(!whole, driver.Warn, "rights", fmt.Sprintf("rights to write parts of what is under %q: if one is taken away, a client that holds a lock there "+
		"loses all its locks, those of the other parts included", d.b.prefix), "grant the prefix as a whole, or use a client for each part whose right may be taken away")
	d.Else("rights", fmt.Sprintf("one right to write all under %q: taking it away loses all locks, at the latest when they would have been renewed", d.b.prefix))
}

// covers returns whether a permission is for all keys under the prefix.
func (b *Backend) covers(p *authpb.Permission) bool {
	from, to := string(p.Key), string(p.RangeEnd)
	end := clientv3.GetPrefixRangeEnd(b.prefix)
	const open = "\x00" // to the end of all keys
	return p.PermType == authpb.READWRITE &&
		strings.TrimSuffix(from, open) <= b.prefix && to != "" && (to == open || end != open && to >= end)
}
