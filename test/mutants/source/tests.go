package source

import (
	"path/filepath"
	"regexp"
)

var declaredTest = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)

// Tests returns the names of the tests and fuzz targets of a directory, and TestMain.
func Tests(dir string) (names []string, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	for _, f := range files {
		text, err := Read(f)
		if err != nil {
			return nil, err
		}
		for _, found := range declaredTest.FindAllStringSubmatch(text, -1) {
			names = append(names, found[1])
		}
	}
	return names, err
}
