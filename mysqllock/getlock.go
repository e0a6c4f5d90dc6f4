package mysqllock

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/base32"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/takennames"
)

// getLock has the requests for GET_LOCK.
type getLock struct {
	*store
	taken takennames.Names
}

// lockName is the argument of GET_LOCK, which ignores case, takes 64 characters, and belongs to no
// database: so it is a hash of database, prefix and name, in small letters and digits.
func (g *getLock) lockName(name string) expression {
	if g.opts.PlainNames {
		return expression(literal(name))
	}
	sum := sha256.Sum256([]byte(g.opts.Prefix + "\x00" + name))
	hash := strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:25]))
	if database := g.database.Load(); database != nil {
		return expression("'hasp:" + *database + ":" + hash + "'")
	}
	return expression("CONCAT('hasp:', " + hashOfDatabase + ", ':', '" + hash + "')")
}

// hashOfDatabase is SQL, since the server knows the name of its database best.
const hashOfDatabase = "LEFT(SHA1(DATABASE()), 16)"

// check refuses, of plain names, those that GET_LOCK would take for others.
func (g *getLock) check(name string) error {
	if !g.opts.PlainNames {
		return nil
	}
	plain := len(name) <= 64
	for i := range len(name) {
		if c := name[i]; c < 0x20 || c > 0x7e || 'A' <= c && c <= 'Z' {
			plain = false
		}
	}
	if !plain || strings.TrimSpace(name) != name {
		return fmt.Errorf("%w: with names=plain a name has at most 64 ASCII characters, without capitals and without spaces at its ends", driver.ErrUnsupported)
	}
	return nil
}

// Requests for a lock: see answerOf.
const (
	bareRequest    = "SELECT ELT(GET_LOCK(?, ?) + 1, '0', ''), CONNECTION_ID()"
	tryingRequest  = "SELECT ELT(GET_LOCK(?, 0) + 1, '0', " + makesToken + "), CONNECTION_ID()"
	waitingRequest = "CALL {p}acquire_1(?, ?)"
)

// acquire has the token in the same statement. With time to wait, a procedure says at once if the
// lock is taken, and goes on; it costs more than a SELECT, which is tried first where the name was
// not taken lately. Without tokens there is no procedure that could do so.
func (g *getLock) acquire(ctx context.Context, c *sql.Conn, r driver.Request, seconds int) (p grant, err error) {
	name := g.lockName(r.Name)
	if g.opts.NoFence {
		return g.request(ctx, c, statement(bareRequest, name, seconds), false)
	}
	if seconds == 0 || !g.taken.Has(r.Name) {
		p, err = g.request(ctx, c, g.named(tryingRequest, name), false)
		if err != nil || p.got || seconds == 0 {
			return p, err
		}
	}
	p, err = g.request(ctx, c, g.named(waitingRequest, name, seconds), true)
	g.taken.Met(r.Name, err != nil || !p.got)
	return p, err
}

// request makes one. If it goes on after its first answer, and that was no, its rows stay open.
func (g *getLock) request(ctx context.Context, c *sql.Conn, text string, goesOn bool) (grant, error) {
	rows, err := c.QueryContext(ctx, text)
	if err != nil {
		return grant{}, explain(ctx, err)
	}
	p, err := answerOf(ctx, rows)
	if err == nil && !p.got && goesOn {
		p.more = rows
		return p, nil
	}
	return p, explain(ctx, errors.Join(err, rows.Close()))
}

// raise draws the token of a lock that the connection has, where acquire could not.
func (g *getLock) raise(ctx context.Context, c *sql.Conn) (token uint64, err error) {
	err = row(ctx, c, g.named("CALL {p}raise_1()"), &token)
	return token, err
}

// note records who holds, for those who ask.
func (g *getLock) note(ctx context.Context, r driver.Request, p grant) error {
	text := g.named("CALL {p}note_1(?, ?, ?, ?, ?, ?, ?)", r.Name, p.token, r.ID, p.connection, r.Since.UnixMicro(), r.Owner, g.lockName(r.Name))
	_, err := run(ctx, g.work, text)
	return err
}

func (g *getLock) release(ctx context.Context, c *sql.Conn, name string) (bool, error) {
	var released sql.NullBool // NULL: it is not held; false: another connection holds it
	err := row(ctx, c, statement("SELECT RELEASE_LOCK(?)", g.lockName(name)), &released)
	return released.Bool, err
}

func (g *getLock) used(ctx context.Context, name string) (bool, uint64, error) {
	var connection sql.Null[uint64]
	err := row(ctx, g.work, statement("SELECT IS_USED_LOCK(?)", g.lockName(name)), &connection)
	return connection.Valid, connection.V, err
}

func (g *getLock) waits(name string) string { return string(g.lockName(name)) }

// fit refuses Galera, where each node has its own GET_LOCKs: two nodes, two holders.
func (g *getLock) fit(context.Context) error {
	if g.galera.Load() {
		return fmt.Errorf("%w: this is a Galera cluster, whose nodes do not share GET_LOCK; use the strategy table", driver.ErrUnsupported)
	}
	return nil
}

// galera reports whether the server is a node of a Galera cluster.
func galera(ctx context.Context, q querier) (bool, error) {
	var name, value string
	err := row(ctx, q, "SHOW GLOBAL VARIABLES LIKE 'wsrep_on'", &name, &value)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil // MySQL has no such variable
	}
	return value == "ON", err
}

// makesToken is SQL for what the token of a lock follows from, which the connection has; acquire_1
// in schema/1.sql says how. It is judged here: as conditions of the SELECT that would take the
// server as long as all else.
//
// The row is read when the lock is held: the condition is one for each row that is read, or the
// optimizer would look the row up by its key before the statement begins to run. That would be too
// early: a holder that came meanwhile may have had a token of a later block.
const makesToken = `COALESCE((SELECT CONCAT_WS(' ', UUID_SHORT(), origin, base, most, @{p}seen, server, @@server_id, @@global.read_only, UNIX_TIMESTAMP())
	FROM {p}store WHERE one > RAND() - 1), '')`

// tokenBehind is by how many seconds a token may be behind the server's clock.
const tokenBehind = 10

// tokenOf makes the token of it, or 0: no token can be told, and the client asks for it by raise.
func tokenOf(said string) uint64 {
	fields := strings.Fields(said)
	if len(fields) != 9 || fields[5] != fields[6] || fields[7] != "0" && fields[7] != "OFF" {
		return 0 // also if @seen is NULL, which is left out
	}
	var n [9]uint64
	for _, i := range []int{0, 1, 2, 3, 4, 8} {
		var err error
		if n[i], err = strconv.ParseUint(fields[i], 10, 64); err != nil {
			return 0
		}
	}
	count, origin, base, most, seen, clock := n[0], n[1], n[2], n[3], n[4], n[8]
	token := base + (count - origin)
	if count < origin || count-origin > most-base || base <= seen || token/1e6+tokenBehind < clock {
		return 0
	}
	return token
}
