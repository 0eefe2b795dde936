package layout

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// output runs a program in a directory of the repository, and returns its lines.
func output(t *testing.T, dir, name string, args ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = filepath.Join("../..", dir)
	var complaints strings.Builder
	cmd.Stderr = &complaints // on a fresh machine go says there what it downloads
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %s %v: %v\n%s", dir, name, args, err, complaints.String())
	}
	return strings.Fields(string(out))
}

// modules are the directories of all modules, the root's first.
func modules(t *testing.T) (dirs []string) {
	t.Helper()
	for _, mod := range output(t, ".", "git", "ls-files", "go.mod", "*/go.mod") {
		if !strings.Contains(mod, "testdata/") {
			dirs = append(dirs, filepath.Dir(mod))
		}
	}
	slices.Sort(dirs)
	if len(dirs) < 10 || dirs[0] != "." {
		t.Fatalf("modules: %v", dirs)
	}
	return dirs
}

// CONTRIBUTING.md has no table of packages: make map prints the first sentence of each.
func TestEachPackageSaysWhatItIs(t *testing.T) {
	t.Parallel()
	for _, dir := range modules(t) {
		if without := output(t, dir, "go", "list", "-f", "{{if not .Doc}}{{.ImportPath}}{{end}}", "./..."); len(without) > 0 {
			t.Errorf("%s: no package comment in %v", dir, without)
		}
	}
}

// go build ./... writes a file where a module has one package, which is a program. Git has to pass
// over it, or it is committed by the next git add.
func TestBuiltProgramsAreIgnored(t *testing.T) {
	t.Parallel()
	for _, dir := range modules(t) {
		packages := output(t, dir, "go", "list", "-f", "{{.Name}}", "./...")
		if !slices.Equal(packages, []string{"main"}) {
			continue
		}
		program := filepath.Join(dir, filepath.Base(dir))
		if exec.CommandContext(t.Context(), "git", "-C", "../..", "check-ignore", "--quiet", program).Run() != nil {
			t.Errorf("/%s: go build ./... writes it: it must stand in .gitignore", program)
		}
	}
}
