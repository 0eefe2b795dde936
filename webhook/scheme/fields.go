package scheme

import (
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/webhook/internal/received"
)

// Fields is a request's headers and its query, for schemes. It matches names of headers in
// net/http's form ([http.CanonicalHeaderKey]) (W4).
type Fields struct {
	Header http.Header
	// RawQuery is the query as it came, without the question mark.
	RawQuery string
}

// Query returns the query as it came, without the question mark: at most 4096 printable ASCII
// characters.
func (f Fields) Query() (string, error) {
	switch {
	case len(f.RawQuery) > received.MaxField:
		return "", Malformed("query", "is longer than 4096 bytes")
	case !received.Printable(f.RawQuery):
		return "", Malformed("query", "has bytes that are not printable ASCII")
	}
	return f.RawQuery, nil
}

// Has reports whether the request has the header, with any value.
func (f Fields) Has(name string) bool { return len(f.Header[http.CanonicalHeaderKey(name)]) > 0 }

// One returns the value of a header that must occur in the request exactly once: 1 to 4096
// printable ASCII characters. With two lines, readers could disagree about which one counts, for
// example a proxy and this Verifier.
func (f Fields) One(name string) (string, error) {
	lines := f.Header[http.CanonicalHeaderKey(name)]
	switch {
	case len(lines) == 0 || lines[0] == "" && len(lines) == 1:
		return "", Malformed(name, "is missing")
	case len(lines) > 1:
		return "", Malformed(name, "occurs more than once")
	case len(lines[0]) > received.MaxField:
		return "", Malformed(name, "is longer than 4096 bytes")
	case !received.Printable(lines[0]):
		return "", Malformed(name, "has bytes that are not printable ASCII")
	}
	return lines[0], nil
}

// ID is One for a header that is Event.ID or a part of it: 1 to 255 visible ASCII characters.
func (f Fields) ID(name string) (string, error) {
	v, err := f.One(name)
	if err != nil {
		return "", err
	}
	if !received.ValidID(v) {
		return "", Malformed(name, "is not 1 to 255 visible ASCII characters")
	}
	return v, nil
}

// Signature is One for a header that holds a tag and one signature, for example "sha256=" and
// hexadecimal digits.
func (f Fields) Signature(name, tag string, a Algorithm, e Encoding) (Signature, error) {
	v, err := f.One(name)
	if err != nil {
		return Signature{}, err
	}
	v, tagged := strings.CutPrefix(v, tag)
	value, canonical := e.Decode(v)
	switch {
	case !tagged:
		return Signature{}, Malformed(name, "does not begin with the scheme's tag")
	case !canonical:
		return Signature{}, Malformed(name, "is not in the canonical encoding")
	case len(value) != a.Size():
		return Signature{}, Malformed(name, "is not as long as a signature")
	}
	return Signature{Algorithm: a, Value: value}, nil
}

// Time is One for a header that holds a time as a whole number of units (a second, or a
// millisecond) since 1970. It also returns the characters, because the signature covers them.
func (f Fields) Time(name string, unit time.Duration) (string, time.Time, error) {
	v, err := f.One(name)
	if err != nil {
		return "", time.Time{}, err
	}
	t, err := received.UnixTime(name, v, unit)
	return v, t, err
}

// Encoding is how a signature is written as text.
type Encoding int

// Encodings of a signature.
const (
	// Hex is lower-case hexadecimal digits.
	Hex Encoding = iota
	// Base64 is RFC 4648 section 4, with padding.
	Base64
)

// Decode accepts the canonical form only: no upper-case digits in Hex, and in Base64 no line ends,
// no missing padding and no stray bits. So the same bytes have only one spelling, and a copy cannot
// pass for another request by its headers.
func (e Encoding) Decode(s string) (value []byte, canonical bool) {
	var err error
	switch e {
	case Hex:
		if value, err = hex.DecodeString(s); err == nil {
			canonical = hex.EncodeToString(value) == s
		}
	case Base64:
		if value, err = base64.StdEncoding.DecodeString(s); err == nil {
			canonical = base64.StdEncoding.EncodeToString(value) == s
		}
	}
	if !canonical {
		return nil, false
	}
	return value, true
}
