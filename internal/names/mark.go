package names

import (
	"fmt"
	"net/url"
	"strings"
)

// marks begins the metadata of each offset that a consumer commits to its group. Other programs'
// begin otherwise.
const marks = "onlyonce/1 "

// Mark is the metadata of a committed offset: it says which scope the group has in that partition.
func Mark(scope string, offset int64) string {
	return fmt.Sprintf("%s%s %d", marks, url.PathEscape(scope), offset)
}

// Marked returns the scope of a committed offset, and whether a consumer of ours has committed it.
// The scope is empty if it cannot be read.
func Marked(metadata string) (scope string, ours bool) {
	rest, ours := strings.CutPrefix(metadata, marks)
	if !ours {
		return "", false
	}
	escaped, _, _ := strings.Cut(rest, " ")
	scope, err := url.PathUnescape(escaped)
	if err != nil {
		return "", true
	}
	return scope, true
}
