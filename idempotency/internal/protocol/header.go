package protocol

import "strings"

// ValidHeader reports whether a field can be sent as it is: its name is a token, and its value has
// no control character except the tab (RFC 9110 sections 5.1 and 5.5). A line end in a value would
// begin another field, or the body.
func ValidHeader(name, value string) bool {
	return ValidName(name) &&
		!strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// ValidName reports whether a header's name is a token.
func ValidName(name string) bool {
	return name != "" && strings.Trim(name, upper+lower+digits+"!#$%&'*+-.^_`|~") == ""
}

// NeverStored returns why a header is never stored (H14), or "" if it may be. Names must be
// canonical.
func NeverStored(name string) string {
	switch name {
	case "Set-Cookie", "Set-Cookie2", "Cookie", "Authorization", "Authentication-Info":
		return "is about one client's session or credentials"
	case "Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
		"Content-Length", "Http2-Settings":
		return "is about one connection or one message's framing"
	case "Date", "Age":
		return "says when an answer was sent"
	}
	switch {
	case strings.HasPrefix(name, "Www-"), strings.HasPrefix(name, "Proxy-"):
		return "is about one client's session or credentials"
	case strings.HasPrefix(name, "Access-Control-"):
		return "answers one request's origin"
	}
	return ""
}
