package protocol

import "strings"

// ValidHeader reports whether a field can be sent as it is: its name is a token, and its value has
// no control character except the tab (RFC 9110 sections 5.1 and 5.5). A line end in a value would
// begin another field, or the body.
func ValidHeader(name, value string) bool {
	return ValidName(name) && !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// ValidName reports whether a header's name is a token.
func ValidName(name string) bool {
	return name != "" && strings.Trim(name, upper+lower+digits+"!#$%&'*+-.^_`|~") == ""
}
