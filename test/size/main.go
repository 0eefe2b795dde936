// Command size measures a commit of this repository by package: lines of Go without tests and of
// tests, exported names and fields, functions above 80 lines, references between files against
// their order, and Markdown. Its figures are comparable with those of its own earlier runs alone.
//
//	go run ./test/size                     # HEAD: every package, and totals
//	go run ./test/size fe6af5d8 HEAD       # what changed from one commit to another
//	go run ./test/size -md fe6af5d8 HEAD   # the same as Markdown, of packages with 1,000 lines or more
//	go run ./test/size -density            # what is too dense in the working tree; 1 if anything is
//
// Lines are printed, and are no bar. Density is one: see package density. It is that of the last
// commit given, by package, and the last line is "density ok" or the number of findings.
//
// References: an edge leads from a file to another file of its package if an identifier in the
// first names something that the second declares at package level, or a method of it; each pair of
// files counts once. The files are put into the greedy order of Eades, Lin and Smyth, and an edge
// is against it if it leads from a later file to an earlier one. Tests have no part in it. As for
// Go's own tools, what is in testdata does not count.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
)

func within(dir string, roots ...string) bool {
	return slices.ContainsFunc(roots, func(root string) bool { return dir == root || strings.HasPrefix(dir, root+"/") })
}

// laboratory is what only this repository runs.
func laboratory(dir string) bool {
	return within(dir, "test", "telemetry/test", "ops/console/e2e", "idempotency/compat", "deploy/check")
}

// product is what users link or run.
func product(dir string) bool { return !laboratory(dir) && !within(dir, "examples", "bench") }

func operators(dir string) bool {
	return product(dir) && within(dir, "ops", "cmd", "internal/operate", "internal/reports")
}

// public reports whether a directory's package is part of the library's surface.
func public(dir string) bool {
	return product(dir) && !within(dir, "tools") && !slices.Contains(strings.Split(dir, "/"), "internal")
}

// totals are sums over directories.
var totals = []struct {
	name string
	of   func(dir string) bool
}{
	{"product", product},
	{"of it ops, cmd, ui", operators},
	{"of it library without these", func(dir string) bool { return product(dir) && !operators(dir) }},
	{"laboratory: test, nested test modules", laboratory},
	{"laboratory: examples", func(dir string) bool { return within(dir, "examples") }},
	{"laboratory: bench", func(dir string) bool { return within(dir, "bench") }},
	{"migrations", func(dir string) bool { return within(dir, "migrations") }},
	{"docs/results", func(dir string) bool { return within(dir, "docs/results") }},
	{"all but docs/results", func(dir string) bool { return !within(dir, "docs/results") }},
	{"all", func(string) bool { return true }},
}

// columns are what a table shows.
var columns = []struct {
	name string
	kind int
}{
	{"files", files}, {"lines", lines}, {"tests", tests}, {"names", names}, {"fields", fields},
	{"long", long}, {"against", backwards}, {"of", references}, {"Markdown KB", markdown},
	{"SQL", sql},
}

func main() {
	md := flag.Bool("md", false, "print a Markdown table of packages with at least 1,000 lines")
	lintOnly := flag.Bool("density", false, "print only what is too dense in the working tree, and exit with 1 if anything is")
	flag.Parse()
	if *lintOnly {
		os.Exit(lint(os.Stdout))
	}
	commits := flag.Args()
	if len(commits) == 0 {
		commits = []string{"HEAD"}
	}
	var runs []map[string]*size
	var last *dense
	for _, commit := range commits {
		src, err := read(commit)
		if err == nil {
			var sizes map[string]*size
			sizes, err = measure(src)
			runs = append(runs, sizes)
		}
		if err == nil {
			last, err = readDensity(src)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "size: %s: %v\n", commit, err)
			os.Exit(1)
		}
	}
	if *md {
		table(runs, 1000, func(cells []string) { fmt.Println("| " + strings.Join(cells, " | ") + " |") })
		return
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	table(runs, 0, func(cells []string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) })
	_ = w.Flush()
	last.print(os.Stdout)
}

// read returns the files of a commit by their path.
func read(commit string) (map[string][]byte, error) {
	out, err := exec.Command("git", "archive", "--format=tar", commit).Output() //nolint:gosec,noctx // its own repository
	if err != nil {
		return nil, fmt.Errorf("git archive: %w", err)
	}
	src := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(out)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return src, nil
		}
		if err != nil {
			return nil, err
		}
		if strings.Contains("/"+h.Name, "/testdata/") {
			continue
		}
		if src[h.Name], err = io.ReadAll(r); err != nil {
			return nil, err
		}
	}
}

// table makes a row of each directory that has at least some lines in one of the runs, and of the
// totals.
func table(runs []map[string]*size, least int, row func(cells []string)) {
	head := []string{""}
	rule := []string{"---"}
	for _, c := range columns {
		head = append(head, c.name)
		rule = append(rule, "--:")
	}
	row(head)
	if least > 0 {
		row(rule)
	}
	large := map[string]bool{}
	for _, sizes := range runs {
		for dir, s := range sizes {
			large[dir] = large[dir] || s[lines]+s[tests] >= max(least, 1)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(large)) {
		if large[dir] {
			row(cells(dir, runs, func(d string) bool { return d == dir }))
		}
	}
	for _, t := range totals {
		row(cells(t.name, runs, t.of))
	}
}

// cells are a row: in each column the sum of each run, or one if all are the same.
func cells(name string, runs []map[string]*size, of func(dir string) bool) []string {
	row := []string{name}
	for _, c := range columns {
		var values []string
		for _, sizes := range runs {
			sum := 0
			for dir, s := range sizes {
				if of(dir) {
					sum += s[c.kind]
				}
			}
			if c.kind == markdown {
				sum = (sum + 512) / 1024
			}
			values = append(values, fmt.Sprint(sum))
		}
		row = append(row, strings.Join(slices.Compact(values), " -> "))
	}
	return row
}
