package etcdlock

import (
	"context"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/authpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp/driver"
)

// rights looks whether the user may write all under the prefix, or parts of it. Since 3.7 etcd
// renews a lease only for those who may write every key on it, and all locks of a client are
// on one. So whoever has rights by parts, and loses one of them, loses all locks with it.
//
// A lease for each part would keep the others. But a client does not know the parts: it would
// have to read its user's roles, again and again, or have a lease, a renewal and a watch stream
// for each name. A client for each part does the same, and who grants the rights knows them.
//
// A user may read what concerns himself. One who is known by his certificate alone has no name
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
		d.add(driver.Info, "rights", "", "cannot be read: %v", explain(d.ctx, "show the user", err))
		return
	}
	whole := slices.Contains(user.Roles, "root")
	for _, r := range user.Roles {
		role, err := auth.RoleGet(ctx, r)
		whole = whole || err == nil && slices.ContainsFunc(role.Perm, d.b.covers)
	}
	if whole {
		d.add(driver.Info, "rights", "", "one right to write all under %q: taking it away loses all locks, at the latest when they would have been renewed", d.b.prefix)
		return
	}
	d.add(driver.Warn, "rights", "grant the prefix as a whole, or use a client for each part whose right may be taken away",
		"rights to write parts of what is under %q: if one is taken away, a client that holds a lock there loses all its locks, those of the other parts included", d.b.prefix)
}

// covers returns whether a permission is for all keys under the prefix.
func (b *Backend) covers(p *authpb.Permission) bool {
	from, to := string(p.Key), string(p.RangeEnd)
	end := clientv3.GetPrefixRangeEnd(b.prefix)
	const open = "\x00" // to the end of all keys
	return p.PermType == authpb.READWRITE &&
		strings.TrimSuffix(from, open) <= b.prefix && to != "" && (to == open || end != open && to >= end)
}
