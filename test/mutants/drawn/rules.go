package main

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/onlyonce/onlyonce/test/mutants/source"
)

// rulesOf returns the ids of the rules that declarations name, or the comments above them.
func (c *chooser) rulesOf(all []decl) (ids []string) {
	for _, d := range all {
		file := filepath.Join(c.root, d.file)
		if filepath.Ext(file) != ".sql" {
			if read, err := source.ReadDecls(file); err == nil {
				ids = append(ids, read.Rules[d.name]...)
			}
			continue
		}
		text, err := source.Read(file)
		if err != nil {
			continue
		}
		for _, s := range source.Statements(text) {
			if s.Name == d.name {
				ids = append(ids, source.Rules(commentAbove(text[:s.From])+text[s.From:s.To])...)
			}
		}
	}
	return ids
}

// commentAbove returns the lines at the end of a text that are a comment of SQL.
func commentAbove(text string) string {
	lines := strings.SplitAfter(text, "\n")
	from := len(lines) - 1 // what stands behind the last line's end
	for from > 0 && strings.HasPrefix(lines[from-1], "--") {
		from--
	}
	return strings.Join(lines[from:], "")
}

var ruleOfTest = regexp.MustCompile(`^Test([A-Z]\d{1,2})(?:\D|$)`)

// rank is 0 for a test of one of the rules, and 1 for another one.
func rank(t *covered, rules []string) int {
	if m := ruleOfTest.FindStringSubmatch(t.Test); m != nil && slices.Contains(rules, m[1]) {
		return 0
	}
	return 1
}
