package history

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Load reads recorded or saved files into one history.
//
// An incomplete line is skipped: its process was killed while writing it, which the kernel allows
// at page boundaries. It was the last record of the process, and without it the history says less
// but nothing wrong: acquire and release are called only after their line is complete. Any other
// line that cannot be read is an error.
func Load(paths ...string) (History, error) {
	var all []event
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		events, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s:%w", path, err)
		}
		all = append(all, events...)
	}
	return fold(all)
}

func parse(text []byte) (events []event, err error) {
	n := 0
	for line := range bytes.SplitSeq(text, []byte("\n")) {
		n++
		var e event
		// The decoder, because it tells apart a line that stops from one that is wrong.
		err := json.NewDecoder(bytes.NewReader(line)).Decode(&e)
		switch {
		case err == nil:
			events = append(events, e)
		case len(line) > 0 && !errors.Is(err, io.ErrUnexpectedEOF):
			return nil, fmt.Errorf("%d: %w", n, err)
		}
	}
	return events, nil
}

// Save writes a history to a file that Load reads, replacing it.
func (h History) Save(path string) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	for i := range h {
		for _, e := range h[i].events() {
			if err := enc.Encode(e); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(path, text.Bytes(), 0o644)
}
