package codec

import "strings"

// Text is s as a column of type text takes it: valid UTF-8 without NUL. PostgreSQL refuses all
// other text, and what comes from outside, for example a handler's error, must never keep a row
// from being written. Whatever it does not take becomes U+FFFD.
func Text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// TextUpTo is [Text] of the first limit bytes of s. A character that the limit cuts in two becomes
// U+FFFD, which may take two bytes more.
func TextUpTo(s string, limit int) string {
	return Text(s[:min(len(s), limit)])
}
