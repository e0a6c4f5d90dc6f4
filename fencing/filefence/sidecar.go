package filefence

import (
	"crypto/rand"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hasplock/hasp/fencing"
)

// The sidecar is two slots, each a line of text:
//
//	hasp fence 88 "orders/42" 1a2b3c4d
//
// token, quoted lock name, and a checksum of the text before it, padded with spaces. The token is
// written into the slot that does not have the greatest one, so that a write that is torn by a
// power loss leaves the other. The sidecar is never replaced by another file: a waiter for its
// flock would then wait for a file that is no longer used.
const (
	slotSize = 4096
	slots    = 2
	magic    = "hasp fence"
)

// sidecar is an open sidecar with its flock held.
type sidecar struct{ file *os.File }

func (s *sidecar) close() { _ = s.file.Close() } // what was written is synced

// raise compares the token and keeps it if it is the greatest. durable says that the caller knows it
// to be on the disk, because it has synced it itself.
//
// A readable token proves only that a process wrote it. That process may have been killed before
// the sync, or its sync may have failed, after which the kernel treats the pages as clean. A write
// under that token would replace the file under a fence that a power loss can undo. So the token is
// written again, the same bytes to the same slot, so that a torn write cannot damage it, and
// synced.
func (s *sidecar) raise(name string, token uint64, durable bool) error {
	seen, at, err := s.read(name)
	if err != nil || seen == token && durable {
		return err
	}
	if err := fencing.Compare(name, token, seen); err != nil {
		return err
	}
	if seen < token {
		at = 1 - at
	}
	line := fmt.Sprintf("%s %d %s", magic, token, strconv.Quote(name))
	line += fmt.Sprintf(" %08x", crc32.ChecksumIEEE([]byte(line)))
	slot := append([]byte(line), strings.Repeat(" ", slotSize-len(line)-1)...)
	if _, err := s.file.WriteAt(append(slot, '\n'), int64(at)*slotSize); err != nil {
		return fmt.Errorf("write %s: %w", s.file.Name(), err)
	}
	if err := s.file.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", s.file.Name(), err)
	}
	// Its name may be new, or created by a process that was killed before this step.
	if seen == 0 || !durable {
		return syncDir(filepath.Dir(s.file.Name()))
	}
	return nil
}

// read returns the greatest token and the slot that it is in. A new sidecar has seen 0.
func (s *sidecar) read(name string) (seen uint64, at int, err error) {
	b := make([]byte, slots*slotSize+1)
	n, err := s.file.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, 0, err
	}
	b = b[:n]
	found := false
	for i := range slots {
		slot := b[min(i*slotSize, n):min((i+1)*slotSize, n)]
		token, of, ok := parse(string(slot))
		if !ok {
			continue
		}
		if of != name {
			return 0, 0, fmt.Errorf("%w: %s is fenced by lock %q, not by %q, and tokens of different locks cannot be compared; remove the sidecar if the lock was renamed",
				fencing.ErrInvalid, s.file.Name(), of, name)
		}
		if !found || token > seen {
			seen, at, found = token, i, true
		}
	}
	// One write makes the first slot whole; until then a crash leaves a part of it or zeros, and no
	// token has passed. Any other unreadable content is damage, or the file does not belong to
	// hasp.
	if !found && n > 0 && !unfinished(b) {
		return 0, 0, fmt.Errorf("%s is damaged or no sidecar of hasp's; remove it only if no older holder can be left", s.file.Name())
	}
	return seen, at, nil
}

// parse reads a slot.
func parse(slot string) (token uint64, name string, ok bool) {
	line := strings.TrimRight(slot, " \n")
	end := strings.LastIndexByte(line, ' ')
	if end < 0 || line[end+1:] != fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(line[:end]))) {
		return 0, "", false
	}
	number, quoted, _ := strings.Cut(strings.TrimPrefix(line[:end], magic+" "), " ")
	token, err := strconv.ParseUint(number, 10, 64)
	if err == nil {
		name, err = strconv.Unquote(quoted)
	}
	return token, name, err == nil
}

// unfinished reports whether the content can come from a first write: that goes to the second slot,
// so before it there is a hole of zeros, and nothing is a whole slot.
func unfinished(b []byte) bool {
	hole := b[:min(slotSize, len(b))]
	return strings.Trim(string(hole), "\x00") == "" && len(b) <= slots*slotSize
}

// create makes a temporary file beside the one that it will replace.
func create(hidden func(suffix string) string, mode fs.FileMode) (*os.File, error) {
	return os.OpenFile(hidden(rand.Text()[:12]+".tmp"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
}

// syncDir makes names in a directory durable.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}
