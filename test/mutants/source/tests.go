package source

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
)

var declaredTest = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)

// Tests returns the names of the tests and fuzz targets of a directory, and TestMain.
func Tests(dir string) (names []string, err error) {
	texts, err := TestTexts(dir)
	return slices.Sorted(maps.Keys(texts)), err
}

// TestTexts returns them with the texts of their files.
func TestTexts(dir string) (texts map[string]string, err error) {
	texts = map[string]string{}
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	for _, f := range files {
		text, err := Read(f)
		if err != nil {
			return nil, err
		}
		for _, found := range declaredTest.FindAllStringSubmatch(text, -1) {
			texts[found[1]] = text
		}
	}
	return texts, err
}
