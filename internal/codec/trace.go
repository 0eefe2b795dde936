package codec

import "strings"

// MaxTrace is the longest trace context that is kept, in bytes.
const MaxTrace = 1 << 10

// IsTrace reports whether s can be kept as a trace context: visible ASCII and line ends, at most
// MaxTrace bytes. It does not parse it.
func IsTrace(s string) bool {
	return len(s) <= MaxTrace &&
		strings.IndexFunc(s, func(r rune) bool { return r != '\n' && (r < ' ' || r > '~') }) < 0
}

// JoinTrace is a W3C trace context (https://www.w3.org/TR/trace-context/) in one string, as
// origin.Origin and the outbox's rows have it: the traceparent, and the tracestate in a second line
// if there is one. A tracestate without a traceparent says nothing.
func JoinTrace(parent, state string) string {
	if parent == "" || state == "" {
		return parent
	}
	return parent + "\n" + state
}

// SplitTrace takes apart what [JoinTrace] has made.
func SplitTrace(trace string) (parent, state string) {
	parent, state, _ = strings.Cut(trace, "\n")
	return parent, state
}
