package reports

import (
	"encoding/hex"
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// Octets are bytes of a message or call, which may hold anything. As JSON they are {"text": ...} if
// they are UTF-8, {"hex": ...} if not, and null if there are none.
type Octets []byte

type octetsJSON struct {
	Text *string `json:"text,omitempty"`
	Hex  *string `json:"hex,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (o Octets) MarshalJSON() ([]byte, error) {
	if o == nil {
		return []byte("null"), nil
	}
	if utf8.Valid(o) {
		s := string(o)
		return json.Marshal(octetsJSON{Text: &s})
	}
	s := hex.EncodeToString(o)
	return json.Marshal(octetsJSON{Hex: &s})
}

// UnmarshalJSON implements json.Unmarshaler.
func (o *Octets) UnmarshalJSON(raw []byte) error {
	var j octetsJSON
	if err := json.Unmarshal(raw, &j); err != nil {
		return err
	}
	switch {
	case j.Text != nil:
		*o = Octets(*j.Text)
	case j.Hex != nil:
		b, err := hex.DecodeString(*j.Hex)
		*o = b
		return err
	default:
		*o = nil
	}
	return nil
}

// String shows them on one line: quoted text, or "hex" and digits, or "null".
func (o Octets) String() string {
	switch {
	case o == nil:
		return "null"
	case utf8.Valid(o):
		return strconv.Quote(string(o))
	}
	return "hex " + hex.EncodeToString(o)
}

// Header is a header of a message, call or event.
type Header struct {
	Name  string `json:"name" doc:"bytes that are not UTF-8 are replaced"`
	Value Octets `json:"value"`
}
