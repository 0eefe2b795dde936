package layout

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// logged is a call of a logger with its message, and of this house's functions that pass one on.
var logged = regexp.MustCompile(`\b(?:[Ll]og|[Ll]ogger)\.(?:Debug|Info|Warn|Error)(?:Context\([^,]+, |\()"([^"]*)"`)

// Who filters a program's log by what onlyonce says needs one word for it: each message of each
// logger begins with it.
func TestLogLinesBeginWithOneWord(t *testing.T) {
	t.Parallel()
	const root = "../.."
	n := 0
	others := []string{"test", "examples", "onlyoncetest", "internal/rig"}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir():
			hidden := strings.HasPrefix(d.Name(), ".") && rel != "."
			if hidden || d.Name() == "testdata" || slices.Contains(others, rel) {
				return fs.SkipDir
			}
			return nil
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, found := range logged.FindAllStringSubmatch(string(text), -1) {
			n++
			if !strings.HasPrefix(found[1], "onlyonce: ") {
				t.Errorf("%s: a line of the log begins with %q", rel, found[1])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n < 100 {
		t.Errorf("%d lines are found", n)
	}
}
