// Command site makes a static site of README.md, docs/ and the packages: a page for each, a search
// over their sections, llms.txt and llms-full.txt. A reader needs no other server. It fails if a
// link leads nowhere.
//
//	make site                   # writes dist/site
//	make site VERSION=v0.1.0    # writes dist/site/v0.1.0, beside other versions
//	make site CHECK=1           # opens pages in Chromium, too, and searches
package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"html/template"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// repository is where links to files that are no pages lead.
const repository = "https://github.com/onlyonce/onlyonce/blob/main/"

// The page of the rules, and the one that is made of the code: it is on the site alone.
const (
	rules       = "docs/rules/README.md"
	rulesByName = "docs/rules/by-name.md"
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed style.css
	styleCSS []byte
	//go:embed search.js
	searchJS []byte

	layout = template.Must(template.New("page").Parse(pageHTML))
)

// page is one file of Markdown.
type page struct {
	Path, URL, Title, Summary string
	source                    []byte
	root                      ast.Node
	html                      string // of a page that is no Markdown
	ids                       map[string]bool
	links                     []string // pages that it leads to, in order
}

// section is an entry of the search.
type section struct {
	URL   string `json:"u"`
	Title string `json:"t"`
	Text  string `json:"x"`
}

// site is everything that is written.
type site struct {
	root     string
	markdown goldmark.Markdown
	pages    []*page
	byPath   map[string]*page
	sections []section
	faults   []error
	version  string // or which commit it is of
}

func main() {
	root := flag.String("root", "../..", "the repository")
	out := flag.String("out", "../../dist/site", "where the site is written")
	version := flag.String("version", "", "a released version, which gets a folder of its own")
	check := flag.Bool("check", false, "open pages in Chromium, and search")
	flag.Parse()
	folder := filepath.Join(*out, *version)
	s, err := build(*root, folder, *version)
	if err == nil && *version != "" {
		err = listVersions(*out)
	}
	if err == nil && *check {
		err = s.browse(folder)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
	fmt.Printf("site ok pages=%d sections=%d %s\n", len(s.pages), len(s.sections), *out)
}

func build(root, out, version string) (*site, error) {
	s := &site{
		root:     root,
		byPath:   map[string]*page{},
		markdown: goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID())),
	}
	list, err := exec.Command("git", "-C", root, "ls-files", "*.md").Output() //nolint:gosec,noctx // its own repository
	if err != nil {
		return nil, err
	}
	for name := range strings.FieldsSeq(string(list)) {
		if strings.HasPrefix(name, "docs/") || slices.Contains(outsideDocs, name) {
			source, err := os.ReadFile(filepath.Join(s.root, name))
			if err != nil {
				return nil, err
			}
			if name == rules {
				source = append(source, "\n[Each rule with its functions and tests]("+path.Base(rulesByName)+")\n"...)
			}
			s.read(name, source)
		}
	}
	byName, err := exec.Command("go", "-C", root, "run", "./test/docs/index").Output() //nolint:gosec,noctx // its own repository
	if err != nil {
		return nil, fmt.Errorf("test/docs/index: %w", err)
	}
	s.read(rulesByName, byName)
	for _, p := range s.pages {
		s.lead(p)
	}
	s.order()
	if err := s.reference(); err != nil {
		return nil, err
	}
	if s.version, err = s.edition(version); err != nil {
		return nil, err
	}
	if err := errors.Join(s.faults...); err != nil {
		return nil, err
	}
	return s, s.write(out)
}

// read parses a page.
func (s *site) read(name string, source []byte) {
	url := strings.TrimSuffix(name, ".md") + ".html"
	if path.Base(name) == "README.md" {
		url = path.Join(path.Dir(name), "index.html")
	}
	p := &page{Path: name, URL: url, source: source, ids: map[string]bool{}}
	p.root = s.markdown.Parser().Parse(text.NewReader(source), parser.WithContext(parser.NewContext(parser.WithIDs(p))))
	for n := p.root.FirstChild(); n != nil; n = n.NextSibling() {
		content := plain(n, source)
		h, heading := n.(*ast.Heading)
		switch {
		case heading:
			id, _ := h.AttributeString("id")
			s.sections = append(
				s.sections,
				section{URL: url + "#" + string(id.([]byte)), Title: content},
			) //nolint:forcetypeassert // goldmark's
			if p.Title == "" {
				p.Title = content
			}
		case len(s.sections) > 0 && p.Title != "":
			s.sections[len(s.sections)-1].Text += content + " "
			if n.Kind() == ast.KindParagraph && p.Summary == "" {
				p.Summary = content
			}
		}
	}
	s.pages, s.byPath[name] = append(s.pages, p), p
}

// outsideDocs are the other pages of the site.
var outsideDocs = []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}

// Generate implements parser.IDs with the anchors that GitHub makes.
func (p *page) Generate(value []byte, _ ast.NodeKind) []byte {
	id := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', r >= '0' && r <= '9', r >= 'a' && r <= 'z':
			return r
		}
		return -1
	}, strings.ToLower(string(util.TrimRightSpace(util.TrimLeftSpace(value)))))
	unique := id
	for n := 1; p.ids[unique]; n++ {
		unique = fmt.Sprintf("%s-%d", id, n)
	}
	p.ids[unique] = true
	return []byte(unique)
}

// Put implements parser.IDs.
func (p *page) Put(id []byte) { p.ids[string(id)] = true }

// plain is the text of a block.
func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if t, is := n.(*ast.Text); is && entering {
			b.Write(t.Segment.Value(source))
			if t.SoftLineBreak() {
				b.WriteByte(' ')
			}
		}
		if entering && n.Type() == ast.TypeBlock && n.Kind() != ast.KindDocument {
			b.WriteByte(' ')
			if c, is := n.(*ast.FencedCodeBlock); is {
				b.Write(c.Lines().Value(source))
			}
		}
		return ast.WalkContinue, nil
	})
	return strings.Join(strings.Fields(b.String()), " ")
}

// lead points the links of a page to pages of the site, or to the repository.
func (s *site) lead(p *page) {
	_ = ast.Walk(p.root, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Link:
			if entering {
				n.Destination = []byte(s.target(p, string(n.Destination)))
			}
		case *ast.Image:
			if entering {
				s.target(p, string(n.Destination))
			}
		}
		return ast.WalkContinue, nil
	})
}

// target is where a link leads.
func (s *site) target(p *page, link string) string {
	if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
		return link
	}
	file, anchor, anchored := strings.Cut(link, "#")
	name := p.Path
	if file != "" {
		name = path.Join(path.Dir(p.Path), file)
	}
	if to := s.byPath[name]; to != nil {
		if anchored && !to.ids[anchor] {
			s.faults = append(s.faults, fmt.Errorf("%s: no section %s in %s", p.Path, anchor, name))
		}
		p.links = append(p.links, name)
		relative, err := filepath.Rel(path.Dir(p.URL), to.URL)
		if err != nil {
			s.faults = append(s.faults, err)
		}
		if anchored {
			relative += "#" + anchor
		}
		return relative
	}
	if _, err := os.Stat(filepath.Join(s.root, name)); err != nil {
		s.faults = append(s.faults, fmt.Errorf("%s: a link to %s, which is not there", p.Path, name))
	}
	return repository + name
}

// order puts README.md first, then the guide's first page and what it leads to, then the others.
func (s *site) order() {
	const guide = "docs/guide/README.md"
	first := append([]string{"README.md", guide}, s.byPath[guide].links...)
	rank := func(p *page) int {
		if i := slices.Index(first, p.Path); i >= 0 {
			return i
		}
		return len(first)
	}
	slices.SortStableFunc(s.pages, func(a, b *page) int { return rank(a) - rank(b) })
}

// write writes all files of the site.
func (s *site) write(out string) error {
	index, err := json.Marshal(s.sections)
	if err != nil {
		return err
	}
	drawer, err := mermaid()
	if err != nil {
		return err
	}
	llms, err := s.llms()
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"style.css":      styleCSS,
		"mermaid.min.js": drawer,
		"llms.txt":       llms,
		"llms-full.txt":  s.whole(),
		"search.js":      append(append([]byte("const sections = "), append(index, ";\n"...)...), searchJS...),
	}
	for _, p := range s.pages {
		var body, whole bytes.Buffer
		body.WriteString(p.html)
		if p.root != nil {
			if err := s.markdown.Renderer().Render(&body, p.source, p.root); err != nil {
				return err
			}
		}
		up := strings.Repeat("../", strings.Count(p.URL, "/"))
		err := layout.Execute(&whole, map[string]any{
			"Page":     p,
			"Up":       up,
			"Pages":    s.pages,
			"Version":  s.version,
			"Diagrams": bytes.Contains(p.source, []byte("```mermaid")),
			"Body":     template.HTML(body.String()), //nolint:gosec // of our own documents
		})
		if err != nil {
			return err
		}
		files[p.URL] = whole.Bytes()
	}
	for _, pattern := range []string{"docs/guide/img/*.png", "docs/charts/*.svg"} {
		images, err := filepath.Glob(filepath.Join(s.root, pattern))
		if err != nil {
			return err
		}
		for _, i := range images {
			if files[path.Dir(pattern)+"/"+filepath.Base(i)], err = os.ReadFile(i); err != nil { //nolint:gosec // of this repository
				return err
			}
		}
	}
	for name, content := range files {
		to := filepath.Join(out, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil { //nolint:gosec // it is published
			return err
		}
		if err := os.WriteFile(to, content, 0o644); err != nil { //nolint:gosec // it is published
			return err
		}
	}
	return nil
}
