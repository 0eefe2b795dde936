package main

import (
	"slices"
	"testing"
)

func TestCommentsAndProse(t *testing.T) {
	src := "package p // one\n\n/* two\nthree */\nvar s = \"// no\"\n// four\n"
	if got, want := comments("p.go", []byte(src)), []string{"// one", "/* two", "three */", "// four"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	md := "# a\n\n```\nno\n```\nb\n"
	if got, want := prose("a.md", []byte(md)), []string{"# a", "b"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		w    word
		rate float64
		want bool
	}{
		{word{most: 4}, 4, true}, {word{most: 4}, 4.1, false}, {word{least: 2}, 1.9, false}, {word{least: 2}, 2, true}, {word{}, 1000, true},
	} {
		if got, verdict := c.w.judge(c.rate); got != c.want {
			t.Errorf("%+v at %v: %v (%s)", c.w, c.rate, got, verdict)
		}
	}
}
