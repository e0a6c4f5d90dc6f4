package driver

import "context"

// Adopter is a Ticket that can take over another session's held entry instead of making a
// new one. It is for stores whose entries do not end with a connection.
type Adopter interface {
	// Adopt makes the entry that holds under the ticket's name with this ID and Seq the
	// ticket's own, in one step and in its place: the Seq, the units, the capacity and the
	// value stay as they are, its ID, Owner and Since become the request's, and it lives and
	// dies with the ticket's session from then on. No other entry is granted anything meanwhile.
	//
	// The ID changes so that all that the old owner still sends (renewals, a Leave, a second
	// Adopt by somebody else) finds nothing. Its session goes on telling Gone for the old ID,
	// as for any entry that is missing.
	//
	// An entry whose session has expired, that waits, or whose units or capacity are not
	// those of the request is not adopted: ErrGone, as if it were not there. Called again,
	// Adopt finds the entry that it has adopted.
	Adopt(ctx context.Context, id string, seq uint64) (Verdict, error)
}

// Exporter is an Adopter whose held entry may have another ID in the store than its Request.
type Exporter interface {
	// ExportedID returns the ID by which the Adopt of any client of the store finds the held entry,
	// and keeps the entry from getting another one from now on. It is an error if the ID is not
	// known at the moment: call again. It does no I/O and calls nothing back; the core calls it
	// with a mutex locked.
	ExportedID() (string, error)
}
