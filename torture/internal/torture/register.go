//go:build unix

package torture

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/internal/history"
)

// register is the resource that a lock protects: a number in a file, which each writer reads, and a
// moment later replaces by the number plus one. Nothing but the lock keeps two writers apart. The
// file's flock makes one read and one write atomic, as any store of data does, and no more.
//
// A fenced register remembers the greatest token and refuses a smaller one. The counts are in the
// same file: they outlive a writer that is killed.
type register struct {
	dir, name string
	fenced    bool
	file      *os.File
}

// state is the content of the file.
type state struct {
	Version uint64 // how many writes were applied
	Seen    uint64 // the greatest token; 0 if it is not fenced
	Lost    uint64 // updates that a write has undone
	Refused uint64 // writes and reads of a smaller token
}

// Incident is a write that undid another one, or that was refused.
type Incident struct {
	At     history.Time `json:"at"`
	Client string       `json:"client"`
	Name   string       `json:"name"`
	Fenced bool         `json:"fenced"`
	Lost   uint64       `json:"lost,omitempty"` // updates undone
	Token  uint64       `json:"token,omitempty"`
	Seen   uint64       `json:"seen,omitempty"`
}

func openRegister(dir, name string, fenced bool) (*register, error) {
	r := &register{dir: dir, name: name, fenced: fenced}
	var err error
	r.file, err = os.OpenFile(r.path(), os.O_CREATE|os.O_RDWR, 0o600)
	return r, err
}

func (r *register) path() string {
	kind := "unfenced"
	if r.fenced {
		kind = "fenced"
	}
	return filepath.Join(r.dir, r.name+"."+kind)
}

func (r *register) close() { _ = r.file.Close() }

// locked runs do with the file's lock, and keeps the state that it leaves.
func (r *register) locked(do func(s *state) error) error {
	fd := int(r.file.Fd())
	if err := syscall.Flock(fd, syscall.LOCK_EX); err != nil {
		return fmt.Errorf("%s: %w", r.path(), err)
	}
	defer func() { _ = syscall.Flock(fd, syscall.LOCK_UN) }()
	s, err := r.load()
	if err != nil {
		return err
	}
	before := s
	err = do(&s)
	if s == before {
		return err
	}
	return errors.Join(err, r.save(s))
}

func (r *register) load() (s state, err error) {
	err = binary.Read(io.NewSectionReader(r.file, 0, int64(binary.Size(s))), binary.LittleEndian, &s)
	if errors.Is(err, io.EOF) { // there was no write yet
		return s, nil
	}
	return s, err
}

// save is one write: a process that is killed has made it or not.
func (r *register) save(s state) error {
	b, err := binary.Append(nil, binary.LittleEndian, s)
	if err == nil {
		_, err = r.file.WriteAt(b, 0)
	}
	return err
}

// read returns the version, and advances a fenced register to the token.
func (r *register) read(client string, token uint64) (version uint64, err error) {
	err = r.locked(func(s *state) error {
		version = s.Version
		return r.admit(client, token, s)
	})
	return version, err
}

// write replaces what was read at a version.
func (r *register) write(client string, token, version uint64) error {
	return r.locked(func(s *state) error {
		if err := r.admit(client, token, s); err != nil {
			return err
		}
		if lost := s.Version - version; lost > 0 {
			s.Lost += lost
			if err := r.note(Incident{Client: client, Lost: lost, Token: token, Seen: s.Seen}); err != nil {
				return err
			}
		}
		s.Version++
		return nil
	})
}

func (r *register) admit(client string, token uint64, s *state) error {
	if !r.fenced {
		return nil
	}
	if err := fencing.Compare(r.name, token, s.Seen); err != nil {
		s.Refused++
		return errors.Join(err, r.note(Incident{Client: client, Token: token, Seen: s.Seen}))
	}
	s.Seen = token
	return nil
}

// incidents is where all registers of a run note them, one line each.
const incidents = "incidents.jsonl"

func (r *register) note(i Incident) error {
	i.At, i.Name, i.Fenced = history.Now(), r.name, r.fenced
	return appendLine(filepath.Join(r.dir, incidents), i)
}

// appendLine adds a line to a file that several processes write. The line break comes first, so
// that a line cut short by a kill does not spoil the next writer's.
func appendLine(path string, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append([]byte{'\n'}, line...))
	return errors.Join(err, f.Close())
}
