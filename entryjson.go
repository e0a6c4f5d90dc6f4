package hasp

import (
	"encoding/json"
	"unicode/utf8"
)

// plainEntry is an Entry without its methods, and with what Entry leaves out of JSON.
type plainEntry struct {
	*entryFields
	Text   *string `json:"value,omitempty"`
	Base64 []byte  `json:"value_base64,omitempty"`
}

type entryFields Entry

// MarshalJSON writes the value as text where it is UTF-8: a published address is to be read, by
// people and by jq. Other values are in base64, under another key.
func (e Entry) MarshalJSON() ([]byte, error) {
	p := plainEntry{entryFields: (*entryFields)(&e)}
	switch text := string(e.Value); {
	case len(e.Value) == 0:
	case utf8.Valid(e.Value):
		p.Text = &text
	default:
		p.Base64 = e.Value
	}
	return json.Marshal(p)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (e *Entry) UnmarshalJSON(text []byte) error {
	p := plainEntry{entryFields: (*entryFields)(e)}
	if err := json.Unmarshal(text, &p); err != nil {
		return err
	}
	e.Value = p.Base64
	if p.Text != nil {
		e.Value = []byte(*p.Text)
	}
	return nil
}
