// Package rfc reads JSON Pointers (RFC 6901) and the header Retry-After (RFC 9110).
package rfc

import (
	"errors"
	"strings"
)

// ParsePointer returns a pointer's reference tokens. What it says names the rule and not the
// pointer, which its caller knows by the name of a field.
func ParsePointer(pointer string) ([]string, error) {
	if !strings.HasPrefix(pointer, "/") {
		return nil, errors.New("must begin with '/' (RFC 6901)")
	}
	tokens := strings.Split(pointer[1:], "/")
	for i, t := range tokens {
		if rest := strings.NewReplacer("~0", "", "~1", "").Replace(t); strings.Contains(rest, "~") {
			return nil, errors.New("must have 0 or 1 after each '~' (RFC 6901)")
		}
		// In this order: ~01 is ~1 and not a slash (section 4).
		tokens[i] = strings.ReplaceAll(strings.ReplaceAll(t, "~1", "/"), "~0", "~")
	}
	return tokens, nil
}

// ParseIndex reads a token as an element's number: digits without leading zeros (section 4).
func ParseIndex(token string) (int, bool) {
	short := token != "" && len(token) <= 9
	leadingZero := len(token) > 1 && token[0] == '0'
	if !short || leadingZero || strings.Trim(token, "0123456789") != "" {
		return 0, false
	}
	n := 0
	for _, d := range []byte(token) {
		n = 10*n + int(d-'0')
	}
	return n, true
}
