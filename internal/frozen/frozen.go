// Package frozen holds the rules for what may be frozen in an outbox row. Enqueue applies them, so
// that the author of a call learns of a fault at once; the HTTP sink applies them again, because a
// row may have been written in SQL, and because they are what keeps a row's contents from choosing
// the host or the framing of a request.
package frozen

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/onlyonce/onlyonce/internal/codec"
)

// Limits of one row, in bytes.
const (
	MaxTarget  = 2 << 10
	MaxHeaders = 16 << 10 // names and values together
)

// Methods are the methods that a call may have: the ones that ask a remote to change something.
var Methods = []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

// Method refuses methods that are not among Methods.
func Method(m string) error {
	if !slices.Contains(Methods, m) {
		return fmt.Errorf("%q is none of %s", clip(m), strings.Join(Methods, ", "))
	}
	return nil
}

// Target refuses a target that is anything but a path below the base URL with an optional query: it
// could otherwise name another host ("//host", "https://host", "user@host") or climb out of the
// base path. Dot segments are refused percent-encoded too, because servers decode before they
// resolve (RFC 3986 section 6.2.2).
func Target(t string) error {
	switch {
	case t == "":
		return nil // the base URL itself
	case len(t) > MaxTarget:
		return fmt.Errorf("%d bytes are more than %d", len(t), MaxTarget)
	case t[0] != '/' && t[0] != '?':
		return fmt.Errorf("%q must be empty or start with / or ?: it is a path below the sink's base URL", clip(t))
	}
	for i := range len(t) {
		c := t[i]
		printable := c > ' ' && c < 0x7f
		if !printable || c == '#' || c == '\\' {
			return fmt.Errorf("%q holds %q: percent-encode spaces, control characters, #, \\ and all that is not ASCII",
				clip(t), c)
		}
	}
	path, query, _ := strings.Cut(t, "?")
	if strings.HasPrefix(path, "//") {
		return fmt.Errorf("%q must not start with //: that names a host", clip(t))
	}
	decoded, err := url.PathUnescape(path)
	if err == nil {
		_, err = url.QueryUnescape(query)
	}
	if err != nil {
		return fmt.Errorf("%q: %w", clip(t), err)
	}
	// Once more for each time that somebody on the way may decode it.
	for again := true; again; {
		for segment := range strings.FieldsFuncSeq(decoded, func(r rune) bool { return r == '/' || r == '\\' }) {
			if isDots(segment) {
				return fmt.Errorf("%q must not hold . or .. as a segment, neither with parameters (..;) or "+
					"control characters, nor encoded twice", clip(t))
			}
		}
		next, err := url.PathUnescape(decoded)
		again = err == nil && next != decoded
		decoded = next
	}
	return nil
}

// isDots reports whether a server may resolve a segment as . or .. Those of Java do so with
// "..;a=b", and others take out control characters, or spaces at the end.
func isDots(segment string) bool {
	name, _, _ := strings.Cut(segment, ";")
	name = strings.Map(func(r rune) rune {
		if r <= ' ' || r == 0x7f {
			return -1
		}
		return r
	}, name)
	return name == "." || name == ".."
}

// Destination returns what a target of a sink names that has no addresses below a base URL, for
// example a queue or a subject: a slash and the name, percent-encoded where Target asks for that.
// An empty target has an empty name.
func Destination(target string) (name string, err error) {
	if err := Target(target); err != nil {
		return "", err
	}
	encoded, ok := strings.CutPrefix(target, "/")
	if !ok && target != "" {
		return "", fmt.Errorf("%q must be a slash and a name", clip(target))
	}
	return url.PathUnescape(encoded)
}

const connections = "it belongs to the connection, not to the call"

// refused are the headers that a row must not hold, and why.
var refused = map[string]string{
	"Idempotency-Key":   "the relay sets the key",
	"X-Idempotency-Key": "the relay sets the key",

	"Authorization":       "secrets are added when the call is sent, see httpsink.Config.Authorize",
	"Proxy-Authorization": "secrets are added when the call is sent, see httpsink.Config.Authorize",
	"Cookie":              "secrets are added when the call is sent, see httpsink.Config.Authorize",
	"X-Api-Key":           "secrets are added when the call is sent, see httpsink.Config.Authorize",
	"X-Auth-Token":        "secrets are added when the call is sent, see httpsink.Config.Authorize",

	"Connection":         connections,
	"Keep-Alive":         connections,
	"Proxy-Connection":   connections,
	"Proxy-Authenticate": connections,
	"Te":                 connections,
	"Trailer":            connections,
	"Transfer-Encoding":  connections,
	"Upgrade":            connections,
	"Expect":             connections,
	"Host":               "the sink's base URL names the host",
	"Content-Length":     "it follows from the body",
}

// Framing says whether a header, named in its canonical form, belongs to the connection, or says
// where the request goes and where it ends.
func Framing(name string) bool {
	return refused[name] == connections || name == "Host" || name == "Content-Length"
}

// Headers turns headers into two parallel lists sorted by name, always the same for the same
// headers: the bytes of a call written again are compared with those that were frozen first, and
// Go's maps have no order. The lists are never nil; faults names every header that must not be
// frozen.
func Headers(h http.Header) (names, values []string, faults []error) {
	names = []string{}
	values = []string{}
	if len(h) == 0 {
		return names, values, nil
	}
	seen := map[string]string{}
	size := 0
	for _, given := range sortedNames(h) {
		name := http.CanonicalHeaderKey(given)
		if other, twice := seen[name]; twice {
			faults = append(faults, fmt.Errorf("%q and %q are one header", clip(other), clip(given)))
			continue
		}
		seen[name] = given
		if err := Name(given); err != nil {
			faults = append(faults, err)
			continue
		}
		for _, v := range h[given] {
			if err := Value(name, v); err != nil {
				faults = append(faults, err)
				continue
			}
			names = append(names, name)
			values = append(values, v)
			size += len(name) + len(v)
		}
	}
	if size > MaxHeaders {
		faults = append(faults, fmt.Errorf("%d bytes of names and values are more than %d", size, MaxHeaders))
	}
	return names, values, faults
}

// Lines is the stored form of headers: a line "Name: value" for each.
func Lines(names, values []string) string {
	var b strings.Builder
	for i, n := range names {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(n)
		b.WriteString(": ")
		b.WriteString(values[i])
	}
	return b.String()
}

// Parse reads what Lines wrote.
func Parse(lines string) http.Header {
	h := http.Header{}
	for lines != "" {
		var line string
		line, lines, _ = strings.Cut(lines, "\n")
		name, value, _ := strings.Cut(line, ": ")
		h[name] = append(h[name], value)
	}
	return h
}

// Trace returns names and values of the headers that carry the trace context of a row, for a sink
// to send: traceparent, and tracestate if there is one. There are none if the row has no context,
// or if the call's own headers, which are frozen, have one.
func Trace(h http.Header, trace string) (headers [][2]string) {
	if _, own := h["Traceparent"]; own {
		return nil
	}
	parent, state := codec.SplitTrace(trace)
	if parent != "" {
		headers = append(headers, [2]string{"traceparent", parent})
		if state != "" {
			headers = append(headers, [2]string{"tracestate", state})
		}
	}
	return headers
}

// sortedNames sorts by canonical form, then as given.
func sortedNames(h http.Header) []string {
	names := make([]string, 0, len(h))
	for n := range h {
		names = append(names, n)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(strings.Compare(http.CanonicalHeaderKey(a), http.CanonicalHeaderKey(b)), strings.Compare(a, b))
	})
	return names
}

// Name refuses header names that are no token (RFC 9110 section 5.6.2), and those that a row must
// not hold (O12).
func Name(name string) error {
	if !Token(name) {
		return fmt.Errorf("is %q: must be the name of a header", clip(name))
	}
	if why, no := refused[http.CanonicalHeaderKey(name)]; no {
		return fmt.Errorf("%s must not be frozen: %s", http.CanonicalHeaderKey(name), why)
	}
	return nil
}

// Token reports whether s is a token of RFC 9110 section 5.6.2.
func Token(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}

// Value refuses what could end the header or change on its way (RFC 9110 section 5.5). It never
// quotes the value, which may be private (O12).
func Value(name, v string) error {
	for i := range len(v) {
		if c := v[i]; (c < ' ' && c != '\t') || c >= 0x7f {
			return fmt.Errorf("the value of %s holds a byte 0x%02x: only visible ASCII, spaces and tabs", name, c)
		}
	}
	if v != strings.Trim(v, " \t") {
		return fmt.Errorf("the value of %s starts or ends with white space, which would be lost on the way", name)
	}
	return nil
}

// clip keeps errors short.
func clip(s string) string {
	if len(s) > 60 {
		return s[:60] + "..."
	}
	return s
}
