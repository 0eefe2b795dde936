package source

import (
	"regexp"
	"slices"
	"strings"
)

var (
	created = regexp.MustCompile(`^create (?:or replace |constraint |unique )*(\w+ [\w.]+)`)
	onTable = regexp.MustCompile(` on [\w.]+`)
)

// Statement is an SQL statement that creates something, or a DO block.
type Statement struct {
	// Name is what it creates, for example `function onlyonce.fence` and `trigger sealed on
	// onlyonce.progress`. A DO block has the name do.
	Name     string
	From, To int // bytes of the source
}

// Statements returns what a chapter creates. Templates of functions within a DO block are found by
// their names too, for example `function onlyonce.claim_RING`.
func Statements(source string) (all []Statement) {
	for _, s := range statements(source, 0, len(source)) {
		head := source[s.from:s.to]
		name := ""
		switch found := created.FindStringSubmatch(head); {
		case strings.HasPrefix(head, "do "):
			name = "do"
		case found == nil:
			continue
		case strings.HasPrefix(found[1], "trigger "):
			name = found[1] + onTable.FindString(head)
		default:
			name = found[1]
		}
		all = append(all, Statement{name, s.from, s.to})
	}
	return all
}

// span is a part of a source, in bytes.
type span struct{ from, to int }

// dollars begins or ends a string between dollar signs.
var dollars = regexp.MustCompile(`^\$\w*\$`)

// statements returns the SQL statements of a part of a source, and the statements that stand in
// strings of a DO block.
func statements(source string, from, to int) (all []span) {
	begin := -1 // of the statement, -1: none
	for at := from; at < to; {
		rest := source[at:to]
		length := 1
		switch tag := dollars.FindString(rest); {
		case strings.HasPrefix(rest, "--"):
			line, _, _ := strings.Cut(rest, "\n")
			at += len(line)
			continue
		case strings.TrimLeft(rest[:1], " \n") == "":
			at++
			continue
		case rest[0] == '\'':
			length += strings.Index(rest[1:], "'") + 1
		case tag != "":
			inner := strings.Index(rest[len(tag):], tag)
			if begin >= 0 && strings.HasPrefix(source[begin:], "do ") {
				body := span{at + len(tag), at + len(tag) + inner}
				all = append(all, templates(source, body)...)
			}
			length = inner + 2*len(tag)
		}
		if begin < 0 {
			begin = at
		}
		at += length
		if rest[0] == ';' || at >= to {
			all = append(all, span{begin, at})
			begin = -1
		}
	}
	return all
}

// templates returns the functions that strings within a DO block's body create.
func templates(source string, body span) (all []span) {
	for at := body.from; at < body.to; at++ {
		tag := dollars.FindString(source[at:body.to])
		if tag == "" {
			continue
		}
		at += len(tag)
		inner := strings.Index(source[at:body.to], tag)
		if inner < 0 {
			break
		}
		all = append(all, statements(source, at, at+inner)...)
		at += inner + len(tag) - 1
	}
	return slices.DeleteFunc(all, func(s span) bool { return !created.MatchString(source[s.from:s.to]) })
}
