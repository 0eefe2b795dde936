package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	wherePart = regexp.MustCompile(`(?s)Where: (.*?)(?:Tests?:\s(.*?))?(?:\n\n|\n\*\*|\n#|$)`)
	quoted    = regexp.MustCompile("`([^`]+)`")
	method    = regexp.MustCompile(`^\(\*(\w+)\)\.(\w+)$`)
	plainName = regexp.MustCompile(`^[\w.]+$`)
	testName  = regexp.MustCompile(`^((?:Test|Fuzz)\w+)(?:/.*)?$`)
)

// Each function, type and constant that a rule names under "Where:" exists, in the package that is
// named before it, and so does each test that it names.
func TestRulesNameWhatExists(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(root + "/docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	schema := textOf(t, "migrations/0001/*.sql")
	tests := sources(t, "_test.go")
	rules, names := 0, 0
	for _, part := range wherePart.FindAllStringSubmatch(string(text), -1) {
		rules++
		pkg, code := "", ""
		for _, q := range quoted.FindAllStringSubmatch(part[1], -1) {
			name := strings.Join(strings.Fields(q[1]), " ")
			if dir, err := os.Stat(filepath.Join(root, name)); err == nil && dir.IsDir() {
				pkg, code = name, textOf(t, name+"/*.go")+schema
				continue
			}
			if pkg == "" {
				continue
			}
			names++
			if other, _, ok := strings.Cut(name, "."); ok && exists(textOf(t, other+"/*.go"), name) {
				continue // of another package of the root's
			}
			if !exists(code, name) {
				t.Errorf("package %s has no %s: %.60q", pkg, name, part[1])
			}
		}
		for _, q := range quoted.FindAllStringSubmatch(part[2], -1) {
			if m := testName.FindStringSubmatch(strings.Join(strings.Fields(q[1]), "")); m != nil {
				names++
				if !strings.Contains(tests, "func "+m[1]+"(") {
					t.Errorf("no test is called %s", m[1])
				}
			}
		}
	}
	if rules < 80 || names < 400 {
		t.Errorf("%d rules and %d names were found", rules, names)
	}
}

// exists reports whether code declares or uses a name: `(*T).m`, `name` or `pkg.name`.
func exists(code, name string) bool {
	if m := method.FindStringSubmatch(name); m != nil {
		return regexp.MustCompile(fmt.Sprintf(`func \(\w* ?\*?%s(\[\w+\])?\) %s\(`, m[1], m[2])).MatchString(code)
	}
	if !plainName.MatchString(name) {
		return true // SQL, a file, a flag
	}
	last := name[strings.LastIndexByte(name, '.')+1:]
	return regexp.MustCompile(`\b` + regexp.QuoteMeta(last) + `\b`).MatchString(code)
}

func textOf(t *testing.T, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, pattern))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
