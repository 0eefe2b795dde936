package sites

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/test/mutants/source"
)

const goText = `package p

import (
	"fmt"
	"slices"
)

type pair struct{ a, b int }

// clip is called by next.
func clip(list []int, from, to int) ([]int, error) {
	if from < to && to > 0 {
		return slices.Clone(list[from:min(to, 9)]), nil
	}
	return nil, errEmpty
}

func next(p *pair) {
	defer done()
	p.a = clip2(p.b, p.a) - 1
	for p.a <= 3 {
		p.a++
		continue
	}
	*p = pair{a: 1, b: 2}
	fmt.Println(p.a, p.b)
}

func clip2(x, y int) int {
	switch {
	case !(x == y):
		return double(int(x))
	default:
		return y
	}
}

func double(n int) int { return 2 * n }

func done() {}

var errEmpty error

const readSQL = ` + "`" + `
select a from onlyonce.t -- where and
 where a > $1 and b between $2 and $3 and kind = 'x and y'
 order by a desc for update skip locked` + "`" + `
`

const sqlText = `create function onlyonce.f(a int) returns int language plpgsql as $$
begin
  if a <= 1 or a is null then
    return 2;
  end if;
  perform onlyonce.g(a);
  a := least(a, 3);
  insert into onlyonce.t values (a) on conflict (a) do nothing;
  return a;
end $$;
create function onlyonce.h(a int) returns boolean language sql as $$ select exists (select 1 from onlyonce.t where not b) $$;
`

// Each operator finds its sites. The texts are "operator: old -> new", and nothing else is drawn
// from these declarations.
func TestSites(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module m\n\ngo 1.26\n", "p/p.go": goText, "p/1.sql": sqlText} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := source.List(root)
	if err != nil {
		t.Fatal(err)
	}
	all, err := All(root, list, []string{"p"})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for _, s := range all {
		found[s.Decl] = append(found[s.Decl], s.Operator+": "+brief(s.Old)+" -> "+brief(s.New))
	}
	for decl, want := range map[string]string{
		"clip": "negate condition: `from < to && to > 0` -> `!(from < to && to > 0)`\n" +
			"drop branch: `from < to && to > 0` -> `(from < to && to > 0) && false`\n" +
			"always branch: `from < to && to > 0` -> `(from < to && to > 0) || true`\n" +
			"drop operand: `from < to && to > 0` -> `from < to`\n" +
			"drop operand: `from < to && to > 0` -> `to > 0`\n" +
			"shift bound: `<` -> `<=`\nturn comparison: `<` -> `>=`\n" +
			"shift bound: `>` -> `>=`\nturn comparison: `>` -> `<=`\n" +
			"alias for a copy: `slices.Clone(list[from:min(to, 9)])` -> `list[from:min(to, 9)]`\n" +
			"drop bound: `from` -> ``\ndrop bound: `min(to, 9)` -> ``\n" +
			"drop cap: `min(to, 9)` -> `to`\ndrop cap: `min(to, 9)` -> `9`\n" +
			"return no error: `errEmpty` -> `nil`",
		"next": "drop defer: `defer done()` -> ``\n" +
			"return early: `` -> `if 0 == 0 { return };`\n" +
			"return early: `` -> `if 0 == 0 { return };`\nreturn early: `` -> `if 0 == 0 { return };`\n" +
			"return early: `` -> `if 0 == 0 { return };`\nreturn early: `` -> `if 0 == 0 { return };`\n" +
			"return early: `` -> `if 0 == 0 { return };`\nreturn early: `` -> `if 0 == 0 { return };`\n" +
			"drop statement: `p.a = clip2(p.b, p.a) - 1` -> ``\n" +
			"change sum: `-` -> `+`\ndrop one: `clip2(p.b, p.a) - 1` -> `clip2(p.b, p.a)`\nswap arguments: `p.b, p.a` -> `p.a, p.b`\n" +
			"negate condition: `p.a <= 3` -> `!(p.a <= 3)`\nshift bound: `<=` -> `<`\n" +
			"drop statement: `p.a++` -> ``\ndrop continue: `continue` -> ``\n" +
			"drop statement: `*p = pair{a: 1, b: 2}` -> ``\ndrop field: `a: 1,` -> ``\ndrop field: `b: 2` -> ``",
		"clip2": "unwrap call: `double(int(x))` -> `int(x)`\ndrop case: `case !(x == y): return " +
			"double(int(x))` -> ``\ndrop not: `!(x == y)` -> `(x == y)`\n" +
			"turn comparison: `==` -> `!=`\ndrop case: `default: return y` -> ``",
		"readSQL": "drop predicate: `a > $1` -> `true`\nshift bound: `>` -> `>=`\n" +
			"drop predicate: `and b between $2 and $3` -> ``\ndrop predicate: `and kind = 'x and y'` -> ``\n" +
			"drop desc: `desc` -> ``\ndrop lock: `for update skip locked` -> ``\ndrop skip locked: `skip locked` -> ``",
		"function onlyonce.f": "negate condition: `a <= 1 or a is null` -> `not coalesce((a <= 1 or a is null), false)`\n" +
			"shift bound: `<=` -> `<`\nturn is null: `is null` -> `is not null`\n" +
			"drop statement: `perform onlyonce.g(a);` -> `null;`\ndrop statement: `a := least(a, 3);` -> `null;`\n" +
			"swap least and greatest: `least` -> `greatest`\n" +
			"drop statement: `insert into onlyonce.t values (a) on conflict (a) do nothing;` -> `null;`\n" +
			"drop on conflict: `on conflict (a) do nothing` -> ``",
		"function onlyonce.h": "drop predicate: `not b` -> `true`\ndrop not: `not` -> ``",
	} {
		expected := strings.Split(want, "\n")
		got := slices.Clone(found[decl])
		slices.Sort(expected)
		slices.Sort(got)
		if !slices.Equal(got, expected) {
			t.Errorf("%s:\n%s\nwant\n%s", decl, strings.Join(got, "\n"), strings.Join(expected, "\n"))
		}
	}
}

// The parts of a draw have nothing in common and leave nothing out. Another seed is another order.
func TestDraw(t *testing.T) {
	t.Parallel()
	var all []Site
	for i := range 100 {
		all = append(all, Site{File: "a.go", Line: i})
	}
	seen := map[int]int{}
	for k := range 3 {
		for _, s := range Draw(all, 1, k+1, 3) {
			seen[s.Line]++
		}
	}
	for i := range 100 {
		if seen[i] != 1 {
			t.Errorf("%d is in %d parts", i, seen[i])
		}
	}
	if slices.Equal(Draw(all, 1, 1, 1), Draw(all, 2, 1, 1)) {
		t.Error("two seeds, one order")
	}
}
