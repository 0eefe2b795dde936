package protocol

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// StringItem parses a String Item (RFC 9651 section 3.3.3) that starts with its first quote. It
// skips the parameters, which must be well-formed: if a part of a field cannot be parsed, the whole
// field is invalid (section 4.2).
func StringItem(field string) (value string, ok bool) {
	value, rest, ok := sfString(field)
	for ok && strings.HasPrefix(rest, ";") {
		rest, ok = sfParameter(strings.TrimLeft(rest[1:], " "))
	}
	return value, ok && strings.Trim(rest, " ") == ""
}

// sfString is section 4.2.5.
func sfString(s string) (value, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		return "", "", false
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return b.String(), s[i+1:], true
		case c == '\\':
			if i++; i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", "", false
			}
			b.WriteByte(s[i])
		case c < ' ' || c > '~':
			return "", "", false
		default:
			b.WriteByte(c)
		}
	}
	return "", "", false
}

const (
	lower  = "abcdefghijklmnopqrstuvwxyz"
	upper  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits = "0123456789"
)

// sfParameter skips a parameter after its semicolon (section 4.2.3.2): a key, and an optional bare
// item.
func sfParameter(s string) (rest string, ok bool) {
	if s == "" || !strings.Contains(lower+"*", s[:1]) {
		return "", false
	}
	_, s = splitPrefix(s, lower+digits+"_-.*")
	if !strings.HasPrefix(s, "=") {
		return s, true
	}
	return sfBareItem(s[1:])
}

// sfBareItem skips a bare item of any type (section 4.2.3.1).
func sfBareItem(s string) (rest string, ok bool) {
	if s == "" {
		return "", false
	}
	switch c := s[0]; {
	case c == '"':
		_, rest, ok = sfString(s)
		return rest, ok
	case c == '?':
		return s[min(2, len(s)):], len(s) > 1 && (s[1] == '0' || s[1] == '1')
	case c == ':':
		content, rest := splitPrefix(s[1:], upper+lower+digits+"+/=")
		return strings.TrimPrefix(rest, ":"), strings.HasPrefix(rest, ":") && validPadding(content)
	case c == '@':
		rest, decimal, ok := sfNumber(s[1:])
		return rest, ok && !decimal
	case c == '%':
		return sfDisplayString(s)
	case strings.Contains(upper+lower+"*", s[:1]):
		_, rest = splitPrefix(s[1:], upper+lower+digits+"!#$%&'*+-.^_`|~:/")
		return rest, true
	}
	rest, _, ok = sfNumber(s)
	return rest, ok
}

// sfNumber skips an Integer or a Decimal (section 4.2.4).
func sfNumber(s string) (rest string, decimal, ok bool) {
	whole, rest := splitPrefix(strings.TrimPrefix(s, "-"), digits)
	if !strings.HasPrefix(rest, ".") {
		return rest, false, 1 <= len(whole) && len(whole) <= 15
	}
	fraction, rest := splitPrefix(rest[1:], digits)
	return rest, true, 1 <= len(whole) && len(whole) <= 12 && 1 <= len(fraction) && len(fraction) <= 3
}

// sfDisplayString skips a Display String (section 4.2.10), which must decode to UTF-8.
func sfDisplayString(s string) (rest string, ok bool) {
	if !strings.HasPrefix(s, `%"`) {
		return "", false
	}
	var decoded []byte
	for i := 2; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return s[i+1:], utf8.Valid(decoded)
		case c < ' ' || c > '~':
			return "", false
		case c == '%':
			if i+2 >= len(s) || strings.Trim(s[i+1:i+3], digits+"abcdef") != "" {
				return "", false
			}
			n, _ := strconv.ParseUint(s[i+1:i+3], 16, 8) // two hexadecimal digits
			decoded = append(decoded, byte(n))
			i += 2
		default:
			decoded = append(decoded, c)
		}
	}
	return "", false
}

// validPadding reports whether the padding of base64, if any, is at its end, and no character is
// left that encodes less than a byte. Padding may be missing (section 4.2.7).
func validPadding(s string) bool {
	body := strings.TrimRight(s, "=")
	padding := len(s) - len(body)
	return !strings.Contains(body, "=") && len(body)%4 != 1 && (padding == 0 || padding == -len(body)&3)
}

// splitPrefix splits s after its longest prefix of characters in set.
func splitPrefix(s, set string) (prefix, rest string) {
	rest = strings.TrimLeft(s, set)
	return s[:len(s)-len(rest)], rest
}
