package kittable

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A faulty program without its verdict is wrong, and so is a sound one with any; rows of another
// module are kept as they are.
func TestTable(t *testing.T) {
	t.Setenv(EnvRows, filepath.Join(t.TempDir(), "rows"))
	if rows, err := Kept(); err != nil || len(rows) != 0 {
		t.Fatalf("before any was kept: %v, %v", rows, err)
	}
	right := []Row{{Name: "b", Faulty: true, Want: []string{"x", "y"}, Got: "y"}, {Name: "a", Points: 3}}
	for _, r := range right {
		if err := Keep(r); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := Kept()
	if err != nil {
		t.Fatal(err)
	}
	text := Table(kept)
	if !strings.HasSuffix(text, "kit ok programs=2 wrong=0\n") || strings.Index(text, "\na ") > strings.Index(text, "\nb ") {
		t.Errorf("%s", text)
	}
	wrong := slices.Concat(kept, []Row{
		{Name: "c", Faulty: true, Want: []string{"x"}},
		{Name: "d", Got: "x"},
		{Name: "e", Faulty: true, Want: []string{"x"}, Got: "z"},
	})
	if text := Table(wrong); !strings.HasSuffix(text, "kit FAILED programs=5 wrong=3\n") {
		t.Errorf("%s", text)
	}
}

// The table is in the file that is named, whole, whatever was in it before.
func TestShow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "table")
	t.Setenv(EnvTable, path)
	for _, rows := range [][]Row{{{Name: "a"}, {Name: "b"}}, {{Name: "a"}}} {
		if err := Show(rows); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != Table(rows) {
			t.Errorf("%s %v", text, err)
		}
	}
}
