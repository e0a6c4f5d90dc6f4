package pglock

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"

	"github.com/hasplock/hasp/driver"
)

// The rules of Options.Key. The first keeps names apart by 64 bits and refuses the pair
// that ever meets; the others are what other programs do, whose locks are then shared.
const (
	KeyHash    = "hash"    // 64 bits of the name's SHA-256
	KeyInteger = "integer" // the name is the number: pg_advisory_lock(42), river and others
	KeyRails   = "rails"   // the name is the database's: migrations of Ruby on Rails
	KeyMigrate = "migrate" // the name is DATABASE/SCHEMA/TABLE: golang-migrate; see migrateParts
)

const (
	railsSalt   = 2053462845
	migrateSalt = 1486364155
)

func checkKeyRule(rule string) error {
	switch rule {
	case KeyHash, KeyInteger, KeyRails, KeyMigrate:
		return nil
	}
	return fmt.Errorf("%w: key must be hash, integer, rails or migrate", driver.ErrInvalid)
}

// keyOf makes the number of an advisory lock.
func keyOf(rule, name string) (int64, error) {
	switch rule {
	case KeyInteger:
		n, err := strconv.ParseInt(name, 10, 64)
		if err != nil || strconv.FormatInt(n, 10) != name { // "007" would be "7" by another name
			return 0, fmt.Errorf("%w: with key=integer a name is a whole number of 64 bits", driver.ErrUnsupported)
		}
		return n, nil
	case KeyRails:
		return railsSalt * int64(crc32.ChecksumIEEE([]byte(name))), nil
	case KeyMigrate:
		database, schema, table, ok := migrateParts(name)
		if !ok {
			return 0, fmt.Errorf("%w: with key=migrate a name is DATABASE/SCHEMA/TABLE, such as /app/public/schema_migrations; "+
				"where golang-migrate was given a *sql.DB and not a URL, DATABASE has no slash in front", driver.ErrUnsupported)
		}
		sum := crc32.ChecksumIEEE([]byte(schema + "\x00" + table + "\x00" + database))
		return int64(sum * migrateSalt), nil // in 32 bits, as it does
	}
	sum := sha256.Sum256([]byte(name))
	return int64(binary.BigEndian.Uint64(sum[:])), nil
}

// migrateParts takes a name of KeyMigrate apart from its end. By its command and by
// migrate.New golang-migrate is given a URL, and takes that one's path for the database's
// name, with the slash: /app/public/schema_migrations. By WithInstance it asks the server
// for the name: app/public/schema_migrations. The two of them do not exclude each other.
func migrateParts(name string) (database, schema, table string, ok bool) {
	parts := strings.Split(name, "/")
	n := len(parts)
	if n < 3 || parts[n-2] == "" || parts[n-1] == "" {
		return "", "", "", false
	}
	database = strings.Join(parts[:n-2], "/")
	return database, parts[n-2], parts[n-1], strings.TrimPrefix(database, "/") != ""
}
