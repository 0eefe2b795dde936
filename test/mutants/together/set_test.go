package together_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/onlyonce/onlyonce/test/mutants/sites"
	"github.com/onlyonce/onlyonce/test/mutants/source"
	"github.com/onlyonce/onlyonce/test/mutants/together"
)

// TestEveryDirectoryOfTheScope puts one change of each directory together: all packages compile,
// also that of the schema, which is changed to read another one.
func TestEveryDirectoryOfTheScope(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	list, err := source.List(root)
	if err != nil {
		t.Fatal(err)
	}
	scope, err := sites.Scope(list)
	if err != nil {
		t.Fatal(err)
	}
	var some []sites.Site
	var builds []string
	for _, dir := range scope {
		all, err := sites.All(root, list, []string{dir})
		if err != nil {
			t.Fatal(err)
		}
		some = append(some, sites.Draw(all, 1, 1, 1)[:min(20, len(all))]...)
		if dir != sites.Schema {
			builds = append(builds, "./"+dir)
		}
	}
	set, err := together.New(root, list, some)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	build := exec.Command("go", append([]string{"build", set.Flag(), "-tags=onlyonce_fault"}, builds...)...)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
