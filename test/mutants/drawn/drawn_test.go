package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/test/mutants/sites"
	"github.com/onlyonce/onlyonce/test/mutants/source"
)

// A line of judged.txt whose site is gone judges nothing, and one without a reason is refused.
func TestJudged(t *testing.T) {
	if testing.Short() {
		t.Skip("type-checks every package that changes are drawn from: without -short")
	}
	t.Parallel()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	list, err := source.List(root)
	if err != nil {
		t.Fatal(err)
	}
	scope, err := sites.Scope(list)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"outbox", "outbox/internal/gate", "internal/brake", sites.Schema} {
		if !slices.Contains(scope, dir) {
			t.Errorf("nothing is drawn from %s", dir)
		}
	}
	all, err := sites.All(root, list, scope)
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, s := range all {
		if ids[s.ID()] {
			t.Errorf("two sites have the id %s", s.ID())
		}
		ids[s.ID()] = true
	}
	judged, err := judgements(judgedText)
	if err != nil {
		t.Fatal(err)
	}
	for id := range judged {
		if !ids[id] {
			t.Errorf("judged.txt: there is no site %s", id)
		}
	}
	if _, err := judgements("consumer f drop-not 12345678 why\n"); err == nil {
		t.Error("a reason of one word is taken")
	}
}

// A change is seen by the tests that run through its line. If the file is another one now, they are
// those that run through its function. A change of SQL is seen through the functions that run it.
// Tests of a rule that stands there are played first.
func TestChoose(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, text := range map[string]string{
		"p/p.go": "package p\n\nfunc a() { _ = readSQL }\n\nfunc b() { /* T9 */\n\tcall(`select onlyonce.outer()`); added()\n}\n\n" +
			"const readSQL = `select 1`\n\nvar call func(string)\n",
		"p/added.go": "package p\n\nfunc added() { more() }\n\nfunc more() {}\n",
		"p/1.sql": "-- Its rule is T9.\ncreate function onlyonce.inner_RING() returns int language sql as $$ select 1 $$;\n" +
			"create function onlyonce.outer() returns int language sql as $$ select onlyonce.inner_a() $$;\n",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read, err := source.ReadDecls(filepath.Join(root, "p/p.go"))
	if err != nil {
		t.Fatal(err)
	}
	through := func(dir, test, hash, decl string, line int) *covered {
		return &covered{
			Dir:     dir,
			Test:    test,
			Seconds: 1,
			Files:   map[string]passage{"p/p.go": {Hash: hash, Lines: []lines{{line, line}}, Decls: []string{decl}}},
		}
	}
	tests := []*covered{
		through("p", "TestA", read.Hash, "a", 3), through("q", "TestB", read.Hash, "b", 6),
		through("p", "TestOld", "older", "b", 3), through("p", "TestT9Old", "older", "b", 3), {Dir: "p"},
	}
	c, err := newChooser(root, tests, []string{"p"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		site  sites.Site
		tests string
	}{
		{sites.Site{File: "p/p.go", Decl: "a", Line: 3}, "p TestA"},
		{sites.Site{File: "p/p.go", Decl: "b", Line: 6}, "p TestT9Old TestOld q TestB"},
		{sites.Site{File: "p/p.go", Decl: "b", Line: 5}, "p TestT9Old TestOld"},
		{sites.Site{File: "p/p.go", Decl: "readSQL", SQL: true}, "p TestA"},
		{sites.Site{File: "p/1.sql", Decl: "function onlyonce.outer", SQL: true}, "p TestT9Old TestOld q TestB"},
		{sites.Site{File: "p/1.sql", Decl: "function onlyonce.inner_RING", SQL: true}, "p TestT9Old TestOld q TestB"},
		{sites.Site{File: "p/p.go", Decl: "call"}, ""},
		{sites.Site{File: "p/added.go", Decl: "more", Line: 5}, "p TestT9Old TestOld q TestB"},
	} {
		var got []string
		for _, g := range c.choose(want.site) {
			got = append(got, g.dir)
			got = append(got, g.tests...)
		}
		if strings.Join(got, " ") != want.tests {
			t.Errorf("%+v: %v, want %s", want.site, got, want.tests)
		}
	}
}
