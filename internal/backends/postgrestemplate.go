package backends

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"

	"github.com/hasplock/hasp/internal/serverprocess"
)

// postgresTemplate is the data directory that initdb has made, for servers without a password: made once for a process, since
// initdb takes several times the processor time of all else in a server's start.
var postgresTemplate = sync.OnceValues(func() (string, error) {
	account, err := serverprocess.AccountFor("postgres")
	if err != nil {
		return "", err
	}
	dir, err := serverprocess.NewDir("postgres-template", account)
	if err != nil {
		return "", err
	}
	data := filepath.Join(dir, "data")
	if err := (&Postgres{account: account}).initdb(dir, data); err != nil {
		return "", err
	}
	// pg_resetwal makes another one for each copy.
	segments, err := filepath.Glob(filepath.Join(data, "pg_wal", "0*"))
	for _, s := range segments {
		err = errors.Join(err, os.Remove(s))
	}
	return data, err
})

// copyTemplate makes a data directory as initdb does.
func (p *Postgres) copyTemplate(dir, data string) error {
	template, err := postgresTemplate()
	if err != nil {
		return err
	}
	if err := p.runIn(dir, "cp", "-a", template, data); err != nil {
		return err
	}
	if err := renumber(filepath.Join(data, "global", "pg_control")); err != nil {
		return err
	}
	return p.runIn(dir, filepath.Join(filepath.Dir(postgresql.path(0)), "pg_resetwal"), "-D", data)
}

// renumber gives a copy another system identifier, by which stores are told apart, as another initdb would. It is the first field
// of the control file. The file's checksum stands behind the last field, which is not at the same place in all versions: it is where
// the CRC-32C of everything before it is.
func renumber(control string) error {
	b, err := os.ReadFile(control)
	if err != nil {
		return err
	}
	sum := func(n int) uint32 { return crc32.Checksum(b[:n], crc32.MakeTable(crc32.Castagnoli)) }
	for at := 8; at+4 <= len(b); at += 4 {
		if sum(at) != binary.NativeEndian.Uint32(b[at:]) {
			continue
		}
		binary.NativeEndian.PutUint64(b, rand.Uint64()>>1)
		binary.NativeEndian.PutUint32(b[at:], sum(at))
		f, err := os.OpenFile(control, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.Write(b)
		return errors.Join(err, f.Close())
	}
	return fmt.Errorf("%s: no checksum is found in it", control)
}
