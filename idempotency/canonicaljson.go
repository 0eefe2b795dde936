package idempotency

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth is how deep arrays and objects may be nested in a body that is compared as JSON, because
// the parser recurses.
const maxDepth = 64

// errJSON wraps why a body cannot be compared as JSON. The text quotes nothing of the body.
var errJSON = errors.New("idempotency: the body cannot be read as JSON")

// canonicalJSON rewrites a JSON text (RFC 8259) in one canonical form: members sorted by the bytes
// of their names, no white space, strings with as few escapes as possible, numbers by their value
// (decimal.appendValue), and literals as they are. Two texts have the same form if and only if they
// differ in nothing else.
//
// It refuses texts that parsers read differently, because the handler's parser might then read
// another request than was compared:
//
//   - A name that occurs twice in an object, also with other escapes or another case. Go's decoder,
//     for example, takes the last of "amount" and "Amount" for either, and the canonical form does
//     not keep their order.
//   - Bytes that are not UTF-8, and halves of surrogate pairs. Decoders replace them all with one
//     character, so that different strings would become equal.
//   - Numbers whose exponent has more than 18 digits, which no parser reads.
func canonicalJSON(text []byte) ([]byte, error) {
	c := &jsonCanonicalizer{in: text, out: make([]byte, 0, len(text))}
	err := c.value(0)
	if err == nil {
		if c.space(); c.at < len(c.in) {
			err = c.fault("there is data after the JSON value")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errJSON, err)
	}
	return c.out, nil
}

type jsonCanonicalizer struct {
	in  []byte
	at  int
	out []byte
}

func (c *jsonCanonicalizer) fault(rule string) error { return fmt.Errorf("%s, at byte %d", rule, c.at) }

func (c *jsonCanonicalizer) space() {
	for c.at < len(c.in) && strings.IndexByte(" \t\r\n", c.in[c.at]) >= 0 {
		c.at++
	}
}

// next skips white space and returns the next byte, or 0 at the end.
func (c *jsonCanonicalizer) next() byte {
	c.space()
	if c.at == len(c.in) {
		return 0
	}
	return c.in[c.at]
}

func (c *jsonCanonicalizer) value(depth int) error {
	switch b := c.next(); {
	case b == '{' || b == '[':
		if depth == maxDepth {
			return c.fault("arrays and objects are nested deeper than " + strconv.Itoa(maxDepth))
		}
		if b == '{' {
			return c.object(depth + 1)
		}
		return c.array(depth + 1)
	case b == '"':
		s, err := c.string()
		c.out = appendString(c.out, s)
		return err
	case b == '-' || '0' <= b && b <= '9':
		return c.number()
	}
	for _, literal := range []string{"true", "false", "null"} {
		if bytes.HasPrefix(c.in[c.at:], []byte(literal)) {
			c.at += len(literal)
			c.out = append(c.out, literal...)
			return nil
		}
	}
	return c.fault("a value is missing")
}

func (c *jsonCanonicalizer) array(depth int) error {
	c.at++
	c.out = append(c.out, '[')
	for first := true; ; first = false {
		if first && c.next() == ']' {
			break
		}
		if err := c.value(depth); err != nil {
			return err
		}
		if c.next() == ']' {
			break
		}
		if c.next() != ',' {
			return c.fault("an array's element must be followed by ',' or ']'")
		}
		c.at++
		c.out = append(c.out, ',')
	}
	c.at++
	c.out = append(c.out, ']')
	return nil
}

func (c *jsonCanonicalizer) object(depth int) error {
	type member struct {
		name       string
		begin, end int // in out
	}
	var members []member
	c.at++
	c.out = append(c.out, '{')
	start := len(c.out)
	for first := true; ; first = false {
		if first && c.next() == '}' {
			break
		}
		if c.next() != '"' {
			return c.fault("a member's name must be a string")
		}
		name, err := c.string()
		if err != nil {
			return err
		}
		if c.next() != ':' {
			return c.fault("a member's name must be followed by ':'")
		}
		c.at++
		m := member{name: name, begin: len(c.out)}
		c.out = append(appendString(c.out, name), ':')
		if err := c.value(depth); err != nil {
			return err
		}
		m.end = len(c.out)
		members = append(members, m)
		if c.next() == '}' {
			break
		}
		if c.next() != ',' {
			return c.fault("a member must be followed by ',' or '}'")
		}
		c.at++
		c.out = append(c.out, ',')
	}
	c.at++
	byName := func(a, b member) int { return strings.Compare(a.name, b.name) }
	if !slices.IsSortedFunc(members, byName) {
		slices.SortFunc(members, byName)
		written := slices.Clone(c.out[start:])
		c.out = c.out[:start]
		for i, m := range members {
			if i > 0 {
				c.out = append(c.out, ',')
			}
			c.out = append(c.out, written[m.begin-start:m.end-start]...)
		}
	}
	if len(members) > 1 {
		seen := make(map[string]struct{}, len(members))
		for _, m := range members {
			seen[foldCase(m.name)] = struct{}{}
		}
		if len(seen) < len(members) {
			return c.fault("the object that ends here has a member twice (names that differ only in case " +
				"count as the same)")
		}
	}
	c.out = append(c.out, '}')
	return nil
}

// foldCase maps all names that are equal under strings.EqualFold, which encoding/json uses, to one
// string: each character becomes the smallest one that differs from it only in case.
func foldCase(name string) string {
	return strings.Map(func(r rune) rune {
		first := r
		for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
			first = min(first, next)
		}
		return first
	}, name)
}

// number reads a number (RFC 8259 section 6), and writes its value.
func (c *jsonCanonicalizer) number() error {
	var d decimal
	d.negative = c.skip("-")
	d.whole = c.digits()
	ok := len(d.whole) == 1 || len(d.whole) > 1 && d.whole[0] != '0'
	if c.skip(".") {
		d.fraction = c.digits()
		ok = ok && len(d.fraction) > 0
	}
	if c.skip("eE") {
		begin := c.at
		c.skip("+-")
		ok = ok && len(c.digits()) > 0
		d.exponent = c.in[begin:c.at]
	}
	if !ok {
		return c.fault("a number is malformed")
	}
	if c.out, ok = d.appendValue(c.out); !ok {
		return c.fault("a number's exponent has more than " + strconv.Itoa(maxExponentDigits) + " digits")
	}
	return nil
}

// skip passes over one of some characters, if it is next.
func (c *jsonCanonicalizer) skip(set string) bool {
	if c.at < len(c.in) && strings.IndexByte(set, c.in[c.at]) >= 0 {
		c.at++
		return true
	}
	return false
}

// digits passes over the digits that are next, and returns them.
func (c *jsonCanonicalizer) digits() []byte {
	begin := c.at
	for c.skip("0123456789") {
	}
	return c.in[begin:c.at]
}

// string decodes a string.
func (c *jsonCanonicalizer) string() (string, error) {
	c.at++
	var s []byte
	for c.at < len(c.in) {
		switch b := c.in[c.at]; {
		case b == '"':
			c.at++
			return string(s), nil
		case b < ' ':
			return "", c.fault("a string contains a control character")
		case b == '\\':
			r, err := c.escape()
			if err != nil {
				return "", err
			}
			s = utf8.AppendRune(s, r)
		case b < utf8.RuneSelf:
			s = append(s, b)
			c.at++
		default:
			r, size := utf8.DecodeRune(c.in[c.at:])
			if r == utf8.RuneError && size == 1 {
				return "", c.fault("a string is not UTF-8")
			}
			s = append(s, c.in[c.at:c.at+size]...)
			c.at += size
		}
	}
	return "", c.fault("a string does not end")
}

// escape decodes an escape sequence, or two that form a surrogate pair.
func (c *jsonCanonicalizer) escape() (rune, error) {
	if c.at+1 < len(c.in) {
		if i := strings.IndexByte(`"\/bfnrt`, c.in[c.at+1]); i >= 0 {
			c.at += 2
			return rune("\"\\/\b\f\n\r\t"[i]), nil
		}
	}
	r, ok := c.unit()
	if !ok {
		return 0, c.fault("an escape is malformed")
	}
	if !utf16.IsSurrogate(r) {
		return r, nil
	}
	low, ok := c.unit()
	if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
		return 0, c.fault("a surrogate has no other half")
	}
	return r, nil
}

// unit reads one \uXXXX.
func (c *jsonCanonicalizer) unit() (rune, bool) {
	if c.at+6 > len(c.in) || c.in[c.at] != '\\' || c.in[c.at+1] != 'u' {
		return 0, false
	}
	hex := string(c.in[c.at+2 : c.at+6])
	n, err := strconv.ParseUint(hex, 16, 16)
	if err != nil || strings.Trim(hex, "0123456789abcdefABCDEF") != "" {
		return 0, false
	}
	c.at += 6
	return rune(n), true
}

// appendString writes a string with as few escapes as possible.
func appendString(out []byte, s string) []byte {
	out = append(out, '"')
	for i := range len(s) {
		switch b := s[i]; {
		case b == '"' || b == '\\':
			out = append(out, '\\', b)
		case b < ' ':
			out = append(out, '\\', 'u', '0', '0', "0123456789abcdef"[b>>4], "0123456789abcdef"[b&15])
		default:
			out = append(out, b)
		}
	}
	return append(out, '"')
}
