package idempotency

import (
	"encoding/json"
	"math/big"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// H7: the file says for any language which numbers are one.
func TestH7EqualNumbers(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/equal-numbers.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct{ Equal, Different [][]string }
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors.Equal) < 9 || len(vectors.Different) < 12 {
		t.Fatalf("%d and %d vectors", len(vectors.Equal), len(vectors.Different))
	}
	form := func(text string) string {
		out, err := canonicalJSON([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		return string(out)
	}
	for _, same := range vectors.Equal {
		for _, other := range same[1:] {
			if form(other) != form(same[0]) {
				t.Errorf("%s and %s: %s and %s", same[0], other, form(same[0]), form(other))
			}
		}
	}
	for _, pair := range vectors.Different {
		if form(pair[0]) == form(pair[1]) {
			t.Errorf("%s and %s are both %s", pair[0], pair[1], form(pair[0]))
		}
	}
}

// H7: two texts have one form if and only if they are one fraction.
func TestH7NumbersByValue(t *testing.T) {
	t.Parallel()
	number := rapid.StringMatching(`-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,4})?([eE][+-]?[0-9]{1,2})?`)
	rapid.Check(t, func(t *rapid.T) {
		a := number.Draw(t, "a")
		b := number.Draw(t, "b")
		if rapid.Bool().Draw(t, "shifted") { // most drawn pairs differ, so this one is made equal
			b = shifted(a, rapid.IntRange(0, 30).Draw(t, "zeros"))
		}
		first, err := canonicalJSON([]byte(a))
		if err != nil {
			t.Fatal(err)
		}
		second, err := canonicalJSON([]byte(b))
		if err != nil {
			t.Fatal(err)
		}
		one, _ := new(big.Rat).SetString(a)
		two, _ := new(big.Rat).SetString(b)
		back, ok := new(big.Rat).SetString(string(first))
		if !ok || back.Cmp(one) != 0 {
			t.Fatalf("%s became %s", a, first)
		}
		if (one.Cmp(two) == 0) != (string(first) == string(second)) {
			t.Fatalf("%s and %s: %s and %s", a, b, first, second)
		}
	})
}

// shifted writes a number with more zeros behind its point.
func shifted(number string, zeros int) string {
	mantissa, exponent, has := strings.Cut(strings.ToLower(number), "e")
	if !strings.Contains(mantissa, ".") {
		mantissa += ".0"
	}
	mantissa += strings.Repeat("0", zeros)
	if has {
		mantissa += "e" + exponent
	}
	return mantissa
}
