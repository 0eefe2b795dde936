package main

import (
	"strings"
	"testing"
)

func TestDensity(t *testing.T) {
	t.Parallel()
	wide := "package p\n\nvar p = \"" + strings.Repeat("x", 115) + "\"\n"
	three := "package p\n\nvar a, b, c = 1, 2, 3\n"
	d, err := readDensity(map[string][]byte{
		"outbox/a.go":      []byte(wide),
		"outbox/b.go":      []byte(three),
		"outbox/a_test.go": []byte(wide),
		"test/p/a.go":      []byte(wide + "\nvar d, e, f = 1, 2, 3\n"),
		"queue/a.go":       []byte("package p\n"),
		"outbox/1.sql":     []byte(wide),
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(d.packages) != 2 || d.packages["outbox"].Findings != 2 || d.rest.Findings != 1 {
		t.Errorf("%+v", d)
	}
	var out strings.Builder
	d.print(&out)
	if !strings.HasSuffix(out.String(), "\ndensity: 3 findings\n") {
		t.Errorf("got\n%s", out.String())
	}
}

func TestDensityOK(t *testing.T) {
	t.Parallel()
	d, err := readDensity(map[string][]byte{"outbox/a.go": []byte("package p\n")})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	d.print(&out)
	if !strings.HasSuffix(out.String(), "\ndensity ok\n") {
		t.Errorf("got\n%s", out.String())
	}
}

// What make lint reads is this repository.
func TestReadTree(t *testing.T) {
	t.Chdir("../..")
	src, err := readTree()
	if err != nil || len(src) < 1000 || src["test/size/main.go"] == nil {
		t.Errorf("%d files: %v", len(src), err)
	}
}
