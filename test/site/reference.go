package main

import (
	"bytes"
	"go/ast"
	gobuild "go/build"
	"go/doc"
	"go/doc/comment"
	"go/format"
	"go/parser"
	"go/token"
	"html/template"
	"os"
	"path/filepath"
	"strings"
)

const module = "github.com/onlyonce/onlyonce"

// surfaces are the names of the files in test/api, without .txt, of packages that export anything:
// outbox-httpsink, for example, is the package in outbox/httpsink.
func surfaces(root string) (names []string, err error) {
	files, err := filepath.Glob(filepath.Join(root, "test/api/*.txt"))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		text, err := os.ReadFile(f) //nolint:gosec // of this repository
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(text)) > 0 {
			names = append(names, strings.TrimSuffix(filepath.Base(f), ".txt"))
		}
	}
	return names, nil
}

// reference adds a page for each package that users import, with what go doc says of it.
func (s *site) reference() error {
	names, err := surfaces(s.root)
	if err != nil {
		return err
	}
	for _, name := range names {
		p, err := s.packagePage(name)
		if err != nil {
			return err
		}
		s.pages = append(s.pages, p)
	}
	return nil
}

// packageOf parses the package in a folder, without its tests.
func packageOf(root, dir string) (*doc.Package, *token.FileSet, error) {
	in, err := gobuild.ImportDir(filepath.Join(root, dir), 0)
	if err != nil {
		return nil, nil, err
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range in.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(in.Dir, name), nil, parser.ParseComments)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, f)
	}
	pkg, err := doc.NewFromFiles(fset, files, module+"/"+dir)
	return pkg, fset, err
}

// packagePage renders a package.
func (s *site) packagePage(name string) (*page, error) {
	dir := strings.ReplaceAll(name, "-", "/")
	pkg, fset, err := packageOf(s.root, dir)
	if err != nil {
		return nil, err
	}
	p := &page{Path: dir, URL: "api/" + name + ".html", Title: "package " + dir, Summary: pkg.Synopsis(pkg.Doc)}
	printer := pkg.Printer()
	printer.HeadingLevel = 2
	printer.DocLinkURL = linkTo
	var b bytes.Buffer
	write := func(text string) { b.Write(printer.HTML(pkg.Parser().Parse(text))) }
	b.WriteString("<h1>" + p.Title + "</h1>\n<pre>import \"" + module + "/" + dir + "\"</pre>\n")
	write(pkg.Doc)
	s.sections = append(s.sections, section{URL: p.URL, Title: p.Title, Text: pkg.Doc})
	symbol := func(id string, decl ast.Decl, text string) error {
		if f, is := decl.(*ast.FuncDecl); is {
			f.Body = nil
		}
		var code bytes.Buffer
		if err := format.Node(&code, fset, decl); err != nil {
			return err
		}
		b.WriteString(`<h3 id="` + id + `">` + id + "</h3>\n<pre>" + template.HTMLEscapeString(code.String()) + "</pre>\n")
		write(text)
		s.sections = append(s.sections, section{URL: p.URL + "#" + id, Title: name + "." + id, Text: text})
		return nil
	}
	for _, d := range declarations(pkg) {
		if err := symbol(d.id, d.decl, d.text); err != nil {
			return nil, err
		}
	}
	p.html = b.String()
	return p, nil
}

// declaration is an exported name, or a group of constants by its first name.
type declaration struct {
	id   string
	decl ast.Decl
	text string
}

// declarations are those of a package, in the order of go doc.
func declarations(pkg *doc.Package) (all []declaration) {
	values := func(of []*doc.Value) {
		for _, v := range of {
			all = append(all, declaration{v.Names[0], v.Decl, v.Doc})
		}
	}
	funcs := func(before string, of []*doc.Func) {
		for _, f := range of {
			all = append(all, declaration{before + f.Name, f.Decl, f.Doc})
		}
	}
	values(pkg.Consts)
	values(pkg.Vars)
	funcs("", pkg.Funcs)
	for _, t := range pkg.Types {
		all = append(all, declaration{t.Name, t.Decl, t.Doc})
		values(t.Consts)
		values(t.Vars)
		funcs("", t.Funcs)
		funcs(t.Name+".", t.Methods)
	}
	return all
}

// linkTo is where a link of a comment leads: to a page beside this one, or to pkg.go.dev.
func linkTo(l *comment.DocLink) string {
	id := l.Name
	if l.Recv != "" {
		id = l.Recv + "." + l.Name
	}
	page := ""
	switch dir, ours := strings.CutPrefix(l.ImportPath, module+"/"); {
	case ours:
		page = strings.ReplaceAll(dir, "/", "-") + ".html"
	case l.ImportPath != "":
		page = "https://pkg.go.dev/" + l.ImportPath
	}
	if id == "" {
		return page
	}
	return page + "#" + id
}
