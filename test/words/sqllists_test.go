package main

import (
	"regexp"
	"slices"
	"strings"
)

// lexeme is a word, a string or a sign of SQL.
type lexeme struct {
	text   string
	line   int  // 0 is the text's first
	starts bool // it is the first of its line
	nest   int  // how many parentheses and brackets are around it
	mate   int  // of a parenthesis or a bracket: where the other one is
}

// sqlToken is comments and white space, and then one token. A name with its dots is one, and so is
// the part of a statement that stands between two raw strings of Go. Dollar quotes are signs: what
// they quote is SQL too.
var sqlToken = regexp.MustCompile("(?s)^(?:--[^\n]*|\\s)*(`\\s*\\+.*?\\+\\s*`|[eE]?'(?:[^']|'')*'|\"[^\"]*\"|\\$[a-z]*\\$|[\\w.@$]+|\\S)")

// tokens returns the tokens of SQL. Words are in lower case.
func tokens(text string) (all []lexeme) {
	var open []int
	line := 0
	for at := 0; at < len(text); {
		m := sqlToken.FindStringSubmatchIndex(text[at:])
		if m == nil { // comments and white space are left
			break
		}
		before := text[at : at+m[2]]
		word := text[at+m[2] : at+m[3]]
		line += strings.Count(before, "\n")
		t := lexeme{
			text:   strings.ToLower(word),
			line:   line,
			starts: strings.Contains(before, "\n"),
			nest:   len(open),
		}
		switch word {
		case "(", "[":
			open = append(open, len(all))
		case ")", "]":
			if last := len(open) - 1; last >= 0 {
				t.nest = last
				t.mate = open[last]
				all[open[last]].mate = len(all)
				open = open[:last]
			}
		}
		all = append(all, t)
		line += strings.Count(word, "\n")
		at += m[3]
	}
	return all
}

// ends are the words behind which a list of columns does not go on.
var ends = map[string][]string{
	"select": {"from", "into", "where", "union", "except", "intersect", "order", "group", "limit", "offset", "for",
		"having", "window", "loop", "returning", "on"},
	"returning": {"into"},
	"set":       {"from", "where", "returning"},
}

// keywords stand in front of a parenthesis that holds no arguments, or in front of the name of a
// function.
var keywords = strings.Fields(`select from where and or on join left right full cross inner lateral group order having
	union except intersect limit offset for returning set insert update delete into with as case when then else end is
	not in any all exists between like using conflict do create function view index trigger returns language if elsif
	loop raise perform return execute begin declare while null default references check primary key unique constraint
	distinct by over partition to comment column ordinality`)

// lists returns where the items begin of each list of columns, values and arguments: of SELECT,
// RETURNING and SET, VALUES, the columns of CREATE TABLE, INSERT and RETURNS TABLE, and what stands
// in parentheses after the name of a function.
func lists(all []lexeme) (found [][]int) {
	for i, t := range all {
		from := i + 1
		var to int
		stop, columns := ends[t.text]
		switch {
		case t.text == "(" && t.mate > 0 && isList(all, i):
			to = t.mate
		case !columns:
			continue
		case t.text == "select" && from < len(all) && all[from].text == "distinct":
			from++
			if all[from].text == "on" {
				from = all[from+1].mate + 1
			}
			to = endOf(all, from, t.nest, stop)
		default:
			to = endOf(all, from, t.nest, stop)
		}
		if items := itemsOf(all, from, to); len(items) > 0 {
			found = append(found, items)
		}
	}
	return found
}

// endOf returns where a list ends that begins at from, in nest parentheses.
func endOf(all []lexeme, from, nest int, stop []string) int {
	for i := from; i < len(all); i++ {
		t := all[i]
		distinct := t.text == "from" && all[i-1].text == "distinct"
		dollars := len(t.text) > 1 && strings.HasPrefix(t.text, "$") && strings.HasSuffix(t.text, "$")
		wrong := t.nest < nest ||
			t.nest == nest && (t.text == ";" || dollars || slices.Contains(stop, t.text) && !distinct)
		if wrong {
			return i
		}
	}
	return len(all)
}

// itemsOf divides a list at its commas. The ORDER BY of an aggregate is no list.
func itemsOf(all []lexeme, from, to int) (items []int) {
	next := true
	for i := from; i < to; i++ {
		if next {
			items = append(items, i)
		}
		if all[i].text == "order" && all[i].nest == all[from].nest && all[from-1].text == "(" {
			break
		}
		next = all[i].text == "," && all[i].nest == all[from].nest
	}
	return items
}

// isList reports whether a parenthesis holds a list: no condition, subquery, row, key or alias.
func isList(all []lexeme, open int) bool {
	if open == 0 {
		return false
	}
	name := all[open-1].text
	if name == "," || name == ")" {
		return isRow(all, open)
	}
	if name == "values" || name == "table" {
		return true
	}
	if !word.MatchString(name) || slices.Contains(keywords, name) {
		return false
	}
	if open == 1 {
		return true
	}
	before := all[open-2].text
	if before == "into" || before == "table" {
		return true
	}
	if before == "as" && open > 4 && all[open-4].text == "into" {
		return true
	}
	if before == "on" && (all[max(0, open-3)].text == "index" || all[max(0, open-4)].text == "index") {
		return false
	}
	return !word.MatchString(before) || slices.Contains(keywords, before) && before != "as" && before != "ordinality"
}

var word = regexp.MustCompile(`^[a-z_][\w.]*$`)

// isRow reports whether a parenthesis is a row of VALUES, but the first.
func isRow(all []lexeme, open int) bool {
	i := open - 1
	for i > 0 && all[i].text == "," && all[i-1].text == ")" {
		i = all[i-1].mate - 1
	}
	return i < open-1 && all[i].text == "values"
}
