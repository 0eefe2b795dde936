package density

import (
	"strings"
	"testing"
)

// Each line that must be reported ends with a comment: want, and a part of the text.
const source = `package p

import "context"

var a, b, c = 1, 2, 3 // want 3 values

const one, two = 1, 2

type held struct {
	context.Context // want a context in a struct
	n int
}

type heldLane struct{ ctx context.Context } // listed

func assign(x, y, z int) (int, error) {
	x, y = 1, 2
	x, y, z = y, z, x
	x, y, z = 1, 2, 3 // want 3 values
	i, j, k := 1, x, y // want 3 values
	for l, m, n := 0, 1, 2; l < n; l, m, n = l+1, m, n+2 { // want 3 values // want 3 values
	}
	i, j, k = three()
	_, err := two()
	return i + j + k, err
}

func before(x, y int) {
	if x = 1; y > 0 { // want an assignment in front
	}
	if x++; y > 0 { // want an assignment in front
	} else if y = 2; x > 1 { // want an assignment in front
	}
	if x = y; x > 0 {
	}
	if n := x; y > 0 {
		before(n, n)
	}
	switch x = 1; { // want an assignment in front
	case y > 1:
	}
	switch x = 1; y { // want an assignment in front
	}
	switch x++; {
	case y > 1, x > 0:
	}
}

func indexed(ok bool) string {
	names := map[bool]string{true: "yes"}
	all := map[bool]string{true: "yes"}[ok] // want a literal indexed
	all += ([]string{"a"})[0] // want a literal indexed
	return names[ok] + all
}

func conditions(a, b, c, d bool) bool {
	if a && b && c {
	}
	if a && (b || !(c && d)) { // want a condition of 4
	}
	for a || b || c || d { // want a condition of 4
	}
	switch {
	case a && b && c && d: // want a condition of 4
	case conditions(a && b, c, d, a):
	}
	all := a && b && c && d
	return all || a && b && c && d
}

// wide is as wide as may be.
var text = "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345"
var text2 = "01234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567" // want 132 columns
	const tabbed = "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123"
`

func TestFindings(t *testing.T) {
	t.Parallel()

	size, found, err := File("outbox/p.go", []byte(source), 120)
	if err != nil {
		t.Fatal(err)
	}
	wants := 0
	for i, line := range strings.Split(source, "\n") {
		parts := strings.Split(line, " // want ")
		for _, want := range parts[1:] {
			wants++
			if len(found) == 0 || found[0].Line != i+1 || !strings.HasPrefix(found[0].Text, want) {
				t.Fatalf("line %d: want %q, found %v", i+1, want, found)
			}
			found = found[1:]
		}
	}
	if len(found) > 0 {
		t.Errorf("found more: %v", found)
	}
	if size.Findings != wants || size.Parallel != 6 {
		t.Errorf("%+v with %d findings", size, wants)
	}
}

// A test and the laboratory may be wider, by what File is told. A tab counts 4 columns, a letter 1.
func TestWidth(t *testing.T) {
	t.Parallel()
	line := "package p\n\nfunc f() {\n\tf() // " + strings.Repeat("é", 109) + "\n}\n"
	for columns, want := range map[int]int{119: 1, 120: 0} {
		size, found, err := File("p.go", []byte(line), columns)
		if err != nil || len(found) != want || size.Code != 4 {
			t.Errorf("%d: %+v, %v, %v", columns, size, found, err)
		}
	}
}

func TestNoGo(t *testing.T) {
	t.Parallel()
	if _, _, err := File("p.go", []byte("package"), 120); err == nil {
		t.Error("no error")
	}
}

func TestAdd(t *testing.T) {
	t.Parallel()
	m := Measure{Code: 1, Characters: 2, Parallel: 3, Findings: 4}
	m.Add(m)
	if want := (Measure{Code: 2, Characters: 4, Parallel: 6, Findings: 8}); m != want {
		t.Errorf("%+v, want %+v", m, want)
	}
}
