package rules

import (
	"go/types"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/analysistest"
)

// What the tests check are modules of their own, also in make test's workspace.
func init() { _ = os.Setenv("GOWORK", "off") }

// Each fault of testdata is found at its line, with these words, and nothing else is: the rules run
// together, so each is silent about what the others find.
func TestRules(t *testing.T) {
	together := &analysis.Analyzer{
		Name: "together", Doc: "all rules in one pass, so that the packages are loaded once", Requires: []*analysis.Analyzer{handlers},
		Run: func(pass *analysis.Pass) (any, error) {
			for _, a := range All() {
				if _, err := a.Run(pass); err != nil {
					return nil, err
				}
			}
			return nil, nil
		},
	}
	// analysistest loads with GOPROXY=off: fetch first what this machine does not have.
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "./...")
	list.Dir = analysistest.TestData()
	if out, err := list.CombinedOutput(); err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	got := analysistest.Run(t, analysistest.TestData(), together, "./...")
	if len(got) < 5 {
		t.Errorf("%d packages", len(got))
	}
}

func TestAnalyzersAreValid(t *testing.T) {
	if err := analysis.Validate(All()); err != nil {
		t.Error(err)
	}
}

// The names in tables are without major versions.
func TestTypeName(t *testing.T) {
	for path, want := range map[string]string{
		"github.com/jackc/pgx/v5/pgxpool": "github.com/jackc/pgx/pgxpool.T",
		"github.com/gofrs/uuid/v5":        "github.com/gofrs/uuid.T",
		"math/rand/v2":                    "math/rand.T",
		"example.com/v2x/v":               "example.com/v2x/v.T",
	} {
		named := types.NewNamed(types.NewTypeName(0, types.NewPackage(path, "p"), "T", nil), types.Typ[types.Int], nil)
		for _, typ := range []types.Type{named, types.NewPointer(named)} {
			if got := typeName(typ); got != want {
				t.Errorf("%s: %q, want %q", path, got, want)
			}
		}
	}
}

// Statements are read by PostgreSQL's parser: words in literals, names and comments do not count.
func TestStatements(t *testing.T) {
	for sql, want := range map[string]sqlVerdict{
		"select 1": reads,
		"\n -- insert\n SELECT updated_at from t":                   reads,
		"with a as (select 1) table a":                              reads,
		"show timezone":                                             reads,
		"/* delete */ select fee from fees where action = 'delete'": reads,
		"(select 1) union all (select 2)":                           reads,
		"values (1)":                                                reads,
		`select "update" from t where note = 'insert into x'`:       reads,
		"select coalesce(max(id), 0) from x where x.x = $1 limit 1": reads,
		"explain select 1":                                          reads,
		"select 1 for update":                                       writes,
		"with a as (delete from t returning 1) select * from a":     writes,
		"select nextval('s')":                                       writes,
		"insert into t values (1)":                                  writes,
		"select 1; delete from t":                                   writes,
		"select 1 into t2":                                          writes,
		"select pg_catalog.pg_notify('a', 'b')":                     writes,
		"explain analyze delete from t":                             writes,
		"/* select */ update t set a = 1":                           writes,
		"merge into t using s on true when matched then do nothing": writes,
		"call p()":          writes,
		"select from where": unknown,
		"":                  unknown,
	} {
		if got := statementDoes(sql); got != want {
			t.Errorf("%q: %v, want %v", sql, got, want)
		}
	}
}

func TestFormats(t *testing.T) {
	got := formatted([]string{"select %s from %q where a = %d and b = '%s' and c like '100%%' limit %[1]d"})
	if want := `select x from "x" where a = 1 and b = 'x' and c like '100%' limit 1`; len(got) != 1 || got[0] != want {
		t.Errorf("%q, want %q", got, want)
	}
}
