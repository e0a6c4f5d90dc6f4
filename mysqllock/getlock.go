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
)

// lockName is the argument of GET_LOCK, which ignores case, takes 64 characters, and belongs to no
// database: so it is a hash of database, prefix and name, in small letters and digits.
func (b *bound) lockName(name string) expression {
	if b.opts.PlainNames {
		return expression(literal(name))
	}
	sum := sha256.Sum256([]byte(b.opts.Prefix + "\x00" + name))
	hash := strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:25]))
	if database := b.database.Load(); database != nil {
		return expression("'hasp:" + *database + ":" + hash + "'")
	}
	return expression("CONCAT('hasp:', " + hashOfDatabase + ", ':', '" + hash + "')")
}

// hashOfDatabase is SQL, since the server knows the name of its database best.
const hashOfDatabase = "LEFT(SHA1(DATABASE()), 16)"

// Check refuses, of plain names, those that GET_LOCK would take for others.
func (b *bound) Check(r driver.Request) error {
	name := r.Name
	if !b.opts.PlainNames {
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

// note records who holds, for those who ask.
func (b *bound) note(ctx context.Context, r driver.Request, token, connection uint64) error {
	text := b.named("CALL {p}note_2(?, ?, ?, ?, ?, ?, ?)", r.Name, token, r.ID, connection, r.Since.UnixMicro(), r.Owner, b.lockName(r.Name))
	_, err := run(ctx, b.work, text)
	return err
}

func (b *bound) used(ctx context.Context, name string) (bool, uint64, error) {
	var connection sql.Null[uint64]
	err := row(ctx, b.work, statement("SELECT IS_USED_LOCK(?)", b.lockName(name)), &connection)
	return connection.Valid, connection.V, err
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

// makesToken is SQL for what the token of a lock follows from, which the connection has; acquire_2
// in schema/2.sql says how. It is judged here: as conditions of the SELECT that would take the
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
