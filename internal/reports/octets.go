package reports

import (
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onlyonce/onlyonce/internal/show"
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

// String shows it on one line.
func (h Header) String() string { return h.Name + ": " + h.Value.String() }

// Headers joins names and values.
func Headers(names, values [][]byte) []Header {
	all := make([]Header, len(names))
	for i, name := range names {
		all[i].Name = strings.ToValidUTF8(string(name), "\uFFFD")
		if i < len(values) {
			all[i].Value = values[i]
		}
	}
	return all
}

// Shown is a body of so many bytes, or why it is not shown: it was erased, or not asked for.
func (o Octets) Shown(bytes int64, erased *time.Time) string {
	switch {
	case erased != nil:
		return "erased"
	case o == nil:
		return show.Size(float64(bytes)) + "; -body shows it"
	}
	return o.String()
}
