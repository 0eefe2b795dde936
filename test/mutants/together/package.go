package together

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"

	"github.com/onlyonce/onlyonce/test/mutants/source"
)

// chosenText declares the variable in a package.
const chosenText = `package %s

import (
	"os"
	"strconv"
)

var ` + chosen + `, _ = strconv.Atoi(os.Getenv("` + Variable + `"))
`

// pkg is a package whose changes are put together.
type pkg struct {
	root    string
	name    string
	listed  *source.Package
	files   *token.FileSet
	parsed  []*ast.File
	info    *types.Info
	outside map[string]bool // constants that other constants need, in tests or in functions
}

// addPackage adds a package's changes. Those that do not compile are found together: an error
// stands in the copy of its own change.
func (s *Set) addPackage(list *source.Listing, dir string, changes []change) error {
	listed := list.Package(filepath.Join(s.root, changes[0].File))
	if listed == nil {
		return nil // a file that this machine does not build
	}
	files, parsed, info, err := list.Typed(listed)
	if err != nil {
		return err
	}
	p := &pkg{root: s.root, name: parsed[0].Name.Name, listed: listed, files: files, parsed: parsed, info: info}
	if p.outside, err = p.neededOutside(); err != nil {
		return err
	}
	for range 8 {
		edited, err := p.edit(changes)
		if err != nil {
			return err
		}
		texts := map[string]string{filepath.Join(dir, "zz_changed.go"): fmt.Sprintf(chosenText, p.name)}
		for _, e := range edited {
			texts[e.name] = e.text
			for _, c := range e.no {
				s.invalid[c.ID()] = true
			}
		}
		wrong, err := p.wrong(list, texts, edited)
		if err != nil {
			return err
		}
		if len(wrong) > 0 {
			for _, c := range changes {
				if wrong[c.number] {
					s.invalid[c.ID()] = true
				}
			}
			changes = without(changes, wrong)
			continue
		}
		for name, text := range texts {
			s.texts[name] = text
		}
		for _, e := range edited {
			for _, c := range e.done {
				s.numbers[c.ID()] = c.number
			}
		}
		return nil
	}
	return fmt.Errorf("it does not compile, whatever is left out")
}

// edit writes the files that have changes.
func (p *pkg) edit(changes []change) (all []*edited, err error) {
	vars := p.variables(changes)
	for _, f := range p.parsed {
		name, err := filepath.Rel(p.root, p.files.Position(f.Pos()).Filename)
		if err != nil {
			return nil, err
		}
		var own []change
		for _, c := range changes {
			if c.File == name {
				own = append(own, c)
			}
		}
		e, err := newEdited(p, f, name, own, vars)
		if err != nil {
			return nil, err
		}
		if e != nil {
			all = append(all, e)
		}
	}
	return all, nil
}

// wrong returns the changes in whose copies the compiler finds errors.
func (p *pkg) wrong(list *source.Listing, texts map[string]string, all []*edited) (map[int]bool, error) {
	absolute := map[string]string{}
	for name, text := range texts {
		absolute[filepath.Join(p.root, name)] = text
	}
	wrong := map[int]bool{}
	for _, err := range list.Errors(p.listed, absolute) {
		number := 0
		for _, e := range all {
			if filepath.Join(p.root, e.name) == err.File {
				number = e.at(err.Offset)
			}
		}
		if number == 0 {
			return nil, fmt.Errorf("%s, byte %d: %s", err.File, err.Offset, err.Text)
		}
		wrong[number] = true
	}
	return wrong, nil
}

// neededOutside returns the names that constants mention in functions and in tests, where they
// must stay constants.
func (p *pkg) neededOutside() (map[string]bool, error) {
	needed := map[string]bool{}
	note := func(n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				needed[id.Name] = true
			}
			return true
		})
	}
	constants := func(n ast.Node) bool {
		if d, ok := n.(*ast.GenDecl); ok && d.Tok == token.CONST {
			note(d)
		}
		return true
	}
	for _, f := range p.parsed {
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil {
				ast.Inspect(d.Body, constants)
			}
		}
	}
	tests, err := filepath.Glob(filepath.Join(p.listed.Dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	for _, name := range tests {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.Inspect(f, constants)
	}
	return needed, nil
}

// variables returns the constants that become variables: those with a change, and those that
// mention one.
func (p *pkg) variables(changes []change) map[string]bool {
	changed := map[string]bool{}
	for _, c := range changes {
		changed[c.Decl] = true
	}
	vars := map[string]bool{}
	for grown := true; grown; {
		grown = false
		for spec := range p.constants() {
			name := spec.Names[0].Name
			if vars[name] || !changed[name] && !mentionsOneOf(spec, vars) {
				continue
			}
			vars[name] = true
			grown = true
		}
	}
	for name := range vars {
		if p.mustStay(name, vars) {
			delete(vars, name)
		}
	}
	return vars
}

// mustStay reports whether a constant, or one that mentions it, cannot become a variable.
func (p *pkg) mustStay(name string, vars map[string]bool) bool {
	if ast.IsExported(name) || p.outside[name] {
		return true
	}
	for spec := range p.constants() {
		single := len(spec.Names) == 1 && len(spec.Values) == 1
		if spec.Names[0].Name == name && (!single || !p.isString(spec.Values[0])) {
			return true
		}
		if mentionsOneOf(spec, map[string]bool{name: true}) && p.mustStay(spec.Names[0].Name, vars) {
			return true
		}
	}
	return false
}

func (p *pkg) constants() func(yield func(*ast.ValueSpec) bool) {
	return func(yield func(*ast.ValueSpec) bool) {
		for _, f := range p.parsed {
			for _, d := range f.Decls {
				g, ok := d.(*ast.GenDecl)
				if !ok || g.Tok != token.CONST {
					continue
				}
				for _, s := range g.Specs {
					if !yield(s.(*ast.ValueSpec)) {
						return
					}
				}
			}
		}
	}
}

func (p *pkg) isString(e ast.Expr) bool {
	t := p.info.Types[e].Type
	return t != nil && slices.Contains([]string{"string", "untyped string"}, t.String())
}

func mentionsOneOf(spec *ast.ValueSpec, names map[string]bool) bool {
	found := false
	for _, v := range spec.Values {
		ast.Inspect(v, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && names[id.Name] {
				found = true
			}
			return !found
		})
	}
	return found
}

// apply returns the text of a part of a file, with a change in it.
func apply(text string, from, to int, c change) string {
	return text[from:c.From] + c.New + text[c.To:to]
}

func join(parts []string) string { return strings.Join(parts, ", ") }
