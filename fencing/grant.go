package fencing

// Grant names a lock and the token of one of its holders. A *hasp.Lease is one; [GrantOf] makes one
// where the lease is in another process.
type Grant interface {
	Name() string  // of the lock
	Token() uint64 // greater than that of every earlier grant of the name
}

// GrantOf returns the grant of a lease that another process has: by HASP_NAME and HASP_TOKEN in the
// environment of the command of hasp run, say. It checks nothing; every With does.
func GrantOf(name string, token uint64) Grant { return grant{name, token} }

type grant struct {
	name  string
	token uint64
}

func (g grant) Name() string  { return g.name }
func (g grant) Token() uint64 { return g.token }
