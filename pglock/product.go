package pglock

import "github.com/hasplock/hasp/driver/kit/doctor"

// products are recognised by version() and the host's name, and by what productSigns adds.
var products = []doctor.Product{
	doctor.Refused("CockroachDB", "CockroachDB", "its advisory locks of a session are stubs, which exclude nothing"),
	doctor.Refused("YugabyteDB", "-YB-", "its READ COMMITTED may be snapshot isolation under another name, and a setting makes stubs of advisory locks"),
	doctor.Refused("Aurora DSQL", ".dsql", "its transactions lock nothing: they conflict at the commit"),
	doctor.Untested("Aurora PostgreSQL", "aurora_version", "one server writes, to storage in several zones"),
	doctor.Untested("Neon", "neon.tenant_id", "a server without requests is stopped after a while; the host with -pooler is a pool in transaction mode"),
	doctor.Untested("Supabase", "supabase_admin", "port 6543 is a pool in transaction mode"),
}

// productSigns asks for more signs than an opening does.
const productSigns = `SELECT concat_ws(' ', version(), (SELECT 'neon.tenant_id' WHERE current_setting('neon.tenant_id', true) IS NOT NULL),
	(SELECT p.proname FROM pg_proc p WHERE p.proname = 'aurora_version' LIMIT 1), (SELECT r.rolname FROM pg_roles r WHERE r.rolname = 'supabase_admin'))`
