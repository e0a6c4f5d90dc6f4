package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Decode reads a request as JSON, more strictly than encoding/json does. That takes Name for name and
// the last of two for both, so that a proxy which looks at a request, or a client's library, may
// see another one than the server; and it makes the same character of all bytes and escapes that
// are none, so that many names would be one lock.
func Decode(body []byte, into any) error {
	if !utf8.Valid(body) || loneSurrogate(body) {
		return errors.New("it is not UTF-8")
	}
	if err := checkKeys(json.NewDecoder(bytes.NewReader(body)), names(into)); err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}

// names are those of a message's fields.
func names(message any) map[string]bool {
	all := map[string]bool{}
	for _, f := range reflect.VisibleFields(reflect.TypeOf(message).Elem()) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			all[name] = true
		}
	}
	return all
}

// checkKeys requires one object, whose keys are known and there once each. No message of a client
// has an object in it.
func checkKeys(d *json.Decoder, known map[string]bool) error {
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.New("it is no JSON object")
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		key, _ := t.(string)
		switch {
		case seen[key]:
			return fmt.Errorf("field %q is there twice", key)
		case !known[key]:
			return fmt.Errorf("there is no field %q", key)
		}
		seen[key] = true
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil { // its end
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more behind the object")
	}
	return nil
}

// loneSurrogate reports an escape that is half a character: \ud83d without \ude00.
func loneSurrogate(body []byte) bool {
	for i := 0; i < len(body); i++ {
		if body[i] != '\\' {
			continue
		}
		first := escaped(body[i:])
		if i++; !utf16.IsSurrogate(first) { // what is escaped is no backslash that escapes
			continue
		}
		if i += 5; utf16.DecodeRune(first, escaped(body[min(i, len(body)):])) == utf8.RuneError {
			return true
		}
		i++
	}
	return false
}

// escaped is the unit of UTF-16 that a text begins with as \u and four digits, else 0.
func escaped(text []byte) rune {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0
	}
	n, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return 0
	}
	return rune(n)
}
