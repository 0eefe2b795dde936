package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const goSource = `package p

// pick is used by next.
func pick(a, b int) int { return max(a, b) }

func (e *engine[T]) next(
	a int, // the first
	b int,
) int {
	if a == b { // equal
		return pick(
			a, // larger
			b,
		)
	}
	e.log("pick(a, b)")
	return 0
}

const (
	limit  = 3
	oldSQL = ` + "`" + `select a -- of all
	  from t where b = 'x'` + "`" + `
)
`

const sqlSource = `create function s.f(a int) returns int
language plpgsql as $$
begin
  -- it's; checked
  if a > 1 then
    return 2;
  end if;
end $$;
create constraint trigger sealed after insert on s.t
  for each row execute function s.f();
create constraint trigger sealed after insert on s.u for each row execute function s.f();
do $do$
declare body text := $f$
create function s.f_RING() returns int language sql as $$ select 1 $$$f$;
begin
  execute body;
end $do$;
create function s.f(a text) returns int language sql as $$ select 3; $$;
`

func TestMutate(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for file, text := range map[string]string{"a.go": goSource, "b.go": "package p\n\nfunc init() { limit() }\n", "1.sql": sqlSource} {
		if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tree := &code{root: root}
	for _, c := range []struct {
		decl, old, new string
		was, is        string // of the file
		err            string
	}{
		{decl: "pick", old: "max(a, b)", new: "min(a, b)", was: "max(a", is: "min(a"},
		{
			decl: "(*engine).next",
			old:  "return pick(a, b)",
			new:  "return 1",
			was:  "return pick(\n\t\t\ta, // larger\n\t\t\tb,\n\t\t)",
			is:   "return 1",
		},
		{
			decl: "(*engine).next",
			old:  "next(a int, b int) int { if a == b",
			new:  "next(b, a int) int { if a != b",
			was:  "next(\n\ta int, // the first\n\tb int,\n) int {\n\tif a == b",
			is:   "next(b, a int) int { if a != b",
		},
		{
			decl: "(*engine).next",
			old:  `e.log("pick(a, b)"); return 0`,
			new:  "return 1",
			was:  "e.log(\"pick(a, b)\")\n\treturn 0",
			is:   "return 1",
		},
		{decl: "limit", old: "3", new: "30", was: "= 3", is: "= 30"},
		{decl: "oldSQL", old: "select a from", new: "select b from", was: "select a -- of all\n\t  from", is: "select b from"},
		{decl: "oldSQL", old: "'x'", new: "'y'", was: "'x'", is: "'y'"},
		{decl: "init", old: "limit()", new: "", was: "limit()", is: ""},
		{
			decl: "function s.f",
			old:  "begin if a > 1 then",
			new:  "begin if false then",
			was:  "begin\n  -- it's; checked\n  if a > 1 then",
			is:   "begin if false then",
		},
		{decl: "function s.f", old: "select 3", new: "select 4", was: "select 3", is: "select 4"},
		{decl: "function s.f_RING", old: "select 1", new: "select 2", was: "select 1", is: "select 2"},
		{decl: "trigger sealed on s.t", old: "insert", new: "delete", was: "insert on s.t", is: "delete on s.t"},
		{decl: "do", old: "execute body;", new: "", was: "execute body;", is: ""},
		{decl: "pick", old: "a", err: `pick: "a" stands there 2 times`},
		{decl: "pick", old: "min", err: `pick: "min" stands there 0 times`},
		{decl: "pick", old: "", err: "stands there 0 times"},
		{decl: "(*engine).next", old: "larger", err: "stands there 0 times"},
		{decl: "limit", old: "select", err: "stands there 0 times"},
		{decl: "trigger sealed on s.u", old: "s.t", err: "stands there 0 times"},
		{decl: "function s.f_RING", old: "execute", err: "stands there 0 times"},
		{decl: "engine.next", old: "e.log", err: "nothing is declared there under the name engine.next"},
	} {
		file, got, err := tree.mutate(mutant{in: ".", decl: c.decl, old: c.old, new: c.new})
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %q: %v, want %q", c.decl, c.old, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		source, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		if want := strings.Replace(string(source), c.was, c.is, 1); got != want || !strings.Contains(string(source), c.was) {
			t.Errorf("%s: %q: got\n%s", c.decl, c.old, got)
		}
	}
}
