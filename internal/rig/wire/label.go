package wire

import (
	"fmt"
	"hash/fnv"
	"regexp"
	"strings"
)

var (
	function = regexp.MustCompile(`^select (?:\w+(?:, \w+)* from )?onlyonce\.(\w+)\(`)
	table    = regexp.MustCompile(`\b(update|insert into|delete from|from|truncate) (?:onlyonce(?:_segments)?\.)?(\w+)`)
	number   = regexp.MustCompile(`\b\d+(?:ms)?\b`)
	word     = regexp.MustCompile(`\w+`)
)

// Label names a message by its statement and kind.
func Label(m Message) string {
	if m.Kind == Startup {
		return "connect.startup"
	}
	return StatementName(m.SQL) + "." + string(m.Kind)
}

// StatementName returns a short name for a statement. Two statements with the same beginning have
// different endings, which are made of their text.
func StatementName(sql string) string {
	s := strings.Join(strings.Fields(strings.ToLower(sql)), " ")
	h := fnv.New32a()
	_, _ = h.Write([]byte(number.ReplaceAllString(s, "N"))) // timeouts are not the same in all histories
	mark := fmt.Sprintf("#%04x", h.Sum32()&0xffff)
	if found := function.FindStringSubmatch(s); found != nil {
		return found[1]
	}
	switch s {
	case "begin", "commit", "rollback":
		return s
	case "":
		return "nothing"
	}
	if found := table.FindStringSubmatch(s); found != nil {
		return strings.ReplaceAll(strings.TrimSuffix(found[1], " into"), " ", "-") + "-" + found[2] + mark
	}
	words := word.FindAllString(s, 3)
	return strings.Join(words, "-") + mark
}
