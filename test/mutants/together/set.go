// Package together compiles many changes of the product at once. Each function that a change is in
// begins with a choice between its text and its copies, one for each change. The environment
// variable [Variable] makes the choice when a test's process starts. So a package's tests are
// compiled and linked once, and not for each change.
//
// A change that cannot be put beside others is left to an overlay of its own: for example one in a
// constant of another type than string, in a function that calls recover, or in the package of the
// migrations, which reads the schema of a change from a directory.
package together

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/onlyonce/onlyonce/test/mutants/sites"
	"github.com/onlyonce/onlyonce/test/mutants/source"
)

// Variable is the number of the change that a process makes; without it, it makes none.
const Variable = "ONLYONCE_CHANGE"

// chosen is the variable of Go in which each package has that number.
const chosen = "changeThatIsPlayed"

// Set is changes that are compiled together.
type Set struct {
	root    string
	dir     string            // of what the set writes; Close removes it
	texts   map[string]string // by file, from the root
	numbers map[string]int    // by site's id
	invalid map[string]bool   // sites that do not compile, by id
	chapter map[int]sites.Site
}

// New writes the changes of sites, and the overlay that the go command needs. The caller calls
// Close.
func New(root string, list *source.Listing, all []sites.Site) (*Set, error) {
	dir, err := os.MkdirTemp("", "together")
	if err != nil {
		return nil, err
	}
	s := &Set{
		root: root, dir: dir, texts: map[string]string{}, numbers: map[string]int{}, invalid: map[string]bool{},
		chapter: map[int]sites.Site{},
	}
	packages := map[string][]change{}
	for i, site := range all {
		c := change{site, i + 1}
		if filepath.Ext(site.File) == ".sql" {
			s.numbers[site.ID()] = c.number
			s.chapter[c.number] = site
			continue
		}
		if filepath.Dir(site.File) == migrations { // addSchema rewrites it
			continue
		}
		packages[filepath.Dir(site.File)] = append(packages[filepath.Dir(site.File)], c)
	}
	for name, changes := range packages {
		if err := s.addPackage(list, name, changes); err != nil {
			s.Close()
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := s.addSchema(); err != nil {
		s.Close()
		return nil, err
	}
	return s, s.write()
}

// Close removes what the set has written.
func (s *Set) Close() { _ = os.RemoveAll(s.dir) }

// Has reports whether the site's change is in the set.
func (s *Set) Has(site sites.Site) bool { return s.numbers[site.ID()] != 0 }

// Invalid reports whether the site's change does not compile.
func (s *Set) Invalid(site sites.Site) bool { return s.invalid[site.ID()] }

// Flag is the flag for the go command, which sees all changes with it.
func (s *Set) Flag() string { return "-overlay=" + filepath.Join(s.dir, "overlay.json") }

// Environment is what a process needs to make the site's change, also in programs that it builds.
// The caller calls clean when the process has ended.
func (s *Set) Environment(site sites.Site) (env []string, clean func(), err error) {
	number := s.numbers[site.ID()]
	env = append(os.Environ(), "GOFLAGS="+s.Flag(), fmt.Sprintf("%s=%d", Variable, number), source.Patience)
	if _, ok := s.chapter[number]; !ok {
		return env, func() {}, nil
	}
	dir, err := s.writeSchema(site, number)
	return append(env, schemaVariable+"="+dir), func() { _ = os.RemoveAll(dir) }, err
}

func (s *Set) write() error {
	replace := map[string]string{}
	for name, text := range s.texts {
		changed := filepath.Join(s.dir, fmt.Sprintf("%d.go", len(replace)))
		if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
			return err
		}
		replace[filepath.Join(s.root, name)] = changed
	}
	spec, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.dir, "overlay.json"), spec, 0o600)
}

// change is a site with its number.
type change struct {
	sites.Site
	number int
}

// without returns the changes but for those of some numbers.
func without(changes []change, numbers map[int]bool) []change {
	return slices.DeleteFunc(slices.Clone(changes), func(c change) bool { return numbers[c.number] })
}
