package mysqllock

import (
	"strconv"
	"strings"
)

// makesToken is SQL for what the token of a lock follows from, which the connection has; acquire_1 in schema/1.sql
// says how. It is judged here: as conditions of the SELECT that would take the server as long as all else.
//
// The row is read when the lock is held: the condition is one for each row that is read, or the optimizer
// would look the row up by its key before the statement begins to run. That would be too early: a holder that
// came meanwhile may have had a token of a later block.
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
