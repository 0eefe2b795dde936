package main

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/test/mutants/sites"
	"github.com/onlyonce/onlyonce/test/mutants/source"
)

// chooser finds the tests that may see a change.
type chooser struct {
	root  string
	tests []*covered
	users map[string][]decl // who mentions a name: for example dir/readSQL, onlyonce.fence
}

// decl is a declaration of the product.
type decl struct{ file, name string }

// newChooser reads who mentions what, in directories of Go and of the schema.
func newChooser(root string, tests []*covered, dirs []string) (*chooser, error) {
	c := &chooser{root: root, tests: tests, users: map[string][]decl{}}
	for _, dir := range dirs {
		names, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			d, err := source.ReadDecls(name)
			if err != nil {
				return nil, err
			}
			for user, mentioned := range d.Uses {
				for _, m := range mentioned {
					c.mention(dir, m, decl{filepath.Join(dir, filepath.Base(name)), user})
				}
			}
		}
		if err := c.chapters(dir); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// mention notes that a declaration of a directory mentions a name. A name of another package is
// known by that package's last element.
func (c *chooser) mention(dir, name string, by decl) {
	key := filepath.Base(dir) + "." + name
	if strings.Contains(name, ".") {
		key = name
	}
	c.users[key] = append(c.users[key], by)
}

func (c *chooser) chapters(dir string) error {
	names, err := filepath.Glob(filepath.Join(c.root, dir, "*.sql"))
	if err != nil {
		return err
	}
	for _, name := range names {
		text, err := source.Read(name)
		if err != nil {
			return err
		}
		for _, s := range source.Statements(text) {
			for _, f := range source.Functions(text[s.From:s.To]) {
				c.mention(dir, f, decl{filepath.Join(dir, filepath.Base(name)), s.Name})
			}
		}
	}
	return nil
}

// functions returns the Go functions through which a site's SQL runs: those that mention the
// constant, or a statement that calls the function of the schema, however indirectly.
func (c *chooser) functions(s sites.Site) (all []decl) {
	seen := map[decl]bool{}
	queue := []decl{{s.File, s.Decl}}
	for len(queue) > 0 {
		d := queue[0]
		queue = queue[1:]
		if seen[d] {
			continue
		}
		seen[d] = true
		all = append(all, d)
		queue = append(queue, c.usersOf(d)...)
	}
	return all
}

func (c *chooser) usersOf(d decl) []decl {
	kind, object, ofSchema := strings.Cut(d.name, " ")
	if !ofSchema {
		if c.isFunction(d) {
			return nil // its tests are known by coverage
		}
		return c.users[filepath.Base(filepath.Dir(d.file))+"."+d.name]
	}
	if kind == "trigger" {
		_, object, _ = strings.Cut(d.name, " on ")
	}
	stem, isTemplate := strings.CutSuffix(object, "_RING")
	if !isTemplate {
		return c.users[object]
	}
	var all []decl
	for name, users := range c.users {
		if strings.HasPrefix(name, stem) {
			all = append(all, users...)
		}
	}
	return all
}

func (c *chooser) isFunction(d decl) bool {
	read, err := source.ReadDecls(filepath.Join(c.root, d.file))
	return err == nil && slices.ContainsFunc(read.Funcs, func(f source.Decl) bool { return f.Name == d.name })
}

// isNew reports whether a function was not there yet when coverage was measured.
func (c *chooser) isNew(d decl) bool {
	read, err := source.ReadDecls(filepath.Join(c.root, d.file))
	return err == nil && !slices.ContainsFunc(c.tests, func(t *covered) bool {
		p, ok := t.Files[d.file]
		return ok && (p.Hash == read.Hash || slices.Contains(p.Decls, d.name))
	})
}

// callers returns the functions that mention a new one, or that mention a new one which does.
func (c *chooser) callers(d decl) (known []decl) {
	seen := map[decl]bool{d: true}
	queue := []decl{d}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		_, name, isMethod := strings.Cut(at.name, ").")
		if !isMethod {
			name = at.name[strings.LastIndex(at.name, ".")+1:]
		}
		dir := filepath.Dir(at.file)
		for _, user := range c.users[filepath.Base(dir)+"."+name] {
			if filepath.Dir(user.file) != dir || seen[user] {
				continue
			}
			seen[user] = true
			if c.isNew(user) {
				queue = append(queue, user)
			} else {
				known = append(known, user)
			}
		}
	}
	return known
}

// sees reports whether a test runs through a site, or through a function that leads there.
func (c *chooser) sees(t *covered, s sites.Site, through []decl) bool {
	if !s.SQL && len(through) == 0 {
		read, err := source.ReadDecls(filepath.Join(c.root, s.File))
		return err == nil && t.passes(s, read.Hash)
	}
	return slices.ContainsFunc(through, func(d decl) bool { return slices.Contains(t.Files[d.file].Decls, d.name) })
}

// Bounds of the tests that are played for a change.
const (
	seconds  = 45 // of one package, as they took when their coverage was measured
	packages = 3
)

// stages are how many seconds of each package's tests are played before the next package's: most
// changes are killed by a test that runs through little else.
var stages = []float64{2, 12, seconds}

// group is some tests of a directory that are played in one process.
type group struct {
	dir   string
	tests []string
	bound time.Duration // of the process: a change may make one wait without end
}

// choose returns the tests that may see a change, in the order in which they are played: in each
// stage those of its own package first, and in each package first the tests of the rules that the
// declaration names, and then those that run through the least.
func (c *chooser) choose(s sites.Site) (groups []group) {
	var through []decl
	switch at := (decl{s.File, s.Decl}); {
	case s.SQL:
		through = c.functions(s)
	case c.isNew(at):
		through = c.callers(at)
	}
	seeing := map[string][]*covered{}
	var dirs []string
	for _, t := range c.tests {
		if t.Test == "" || !c.sees(t, s, through) {
			continue
		}
		if seeing[t.Dir] == nil {
			dirs = append(dirs, t.Dir)
		}
		seeing[t.Dir] = append(seeing[t.Dir], t)
	}
	own := func(dir string) int {
		if dir == filepath.Dir(s.File) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(dirs, func(a, b string) int {
		return cmp.Or(cmp.Compare(own(a), own(b)), cmp.Compare(len(seeing[b]), len(seeing[a])))
	})
	dirs = dirs[:min(len(dirs), packages)]
	spent := map[string]float64{}
	named := c.rulesOf(append(through, decl{s.File, s.Decl}))
	for _, dir := range dirs {
		slices.SortStableFunc(seeing[dir], func(a, b *covered) int {
			return cmp.Or(cmp.Compare(rank(a, named), rank(b, named)), cmp.Compare(a.decls(), b.decls()))
		})
	}
	for _, stage := range stages {
		for _, dir := range dirs {
			g := group{dir: dir}
			for len(seeing[dir]) > 0 && spent[dir] < stage {
				t := seeing[dir][0]
				seeing[dir] = seeing[dir][1:]
				spent[dir] += t.Seconds
				g.tests = append(g.tests, t.Test)
				g.bound += time.Duration(3 * t.Seconds * float64(time.Second))
			}
			if len(g.tests) > 0 {
				g.bound = min(patience, leastPatience+g.bound)
				groups = append(groups, g)
			}
		}
	}
	return groups
}
