package main

import (
	"strings"
	"testing"
)

func TestMeasure(t *testing.T) {
	t.Parallel()
	src := map[string][]byte{
		"p/a.go": []byte("// Package p is measured.\npackage p\n\nimport \"fmt\"\n\n// A has " +
			"fields.\ntype A struct {\n\tX, y int\n\tIn struct{ Z int }\n}\n\nfunc (a *A) M() { fmt.Println(b) }\n"),
		"p/b.go":            []byte("package p\n\nvar b = new(A)\n\nfunc c() { b.M() }\n"),
		"p/c.go":            []byte("package p\n\n// E is exported.\nconst E = 1\n\nfunc d() { c(); " + strings.Repeat("\n", 80) + "}\n"),
		"p/c_windows.go":    []byte("package p\n\nconst F, g = 1, 2\n\nfunc e() { d() }\n"),
		"p/a_test.go":       []byte("package p\n"),
		"p/internal/q/q.go": []byte("package q\n\nvar Q int\n"),
		"p/README.md":       []byte("three"),
		"p/1.sql":           []byte("select 1;\n"),
	}
	sizes, err := measure(src)
	if err != nil {
		t.Fatal(err)
	}
	// a and b refer to each other, c to b.
	want := size{files: 4, lines: 12 + 5 + 86 + 5, tests: 1, names: 3, fields: 3, long: 1, references: 3, backwards: 1, markdown: 5, sql: 1}
	if got := *sizes["p"]; got != want {
		t.Errorf("%v, want %v", got, want)
	}
	got := *sizes["p/internal/q"]
	want = (size{files: 1, lines: 3})
	if got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestAgainst(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		edges []edge
		want  int
	}{
		{nil, 0},
		{[]edge{{2, 1}, {1, 0}, {2, 0}}, 0},
		{[]edge{{0, 1}, {1, 2}, {2, 0}}, 1},
		{[]edge{{0, 1}, {1, 0}, {1, 2}, {2, 1}}, 2},
	} {
		if got := against(3, c.edges); got != c.want {
			t.Errorf("%v: %d, want %d", c.edges, got, c.want)
		}
	}
}
