package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/onlyonce/onlyonce/test/size/density"
)

// dense is how dense the Go files of a tree are.
type dense struct {
	packages map[string]density.Measure // of the product, by directory
	rest     density.Measure            // tests, laboratory and examples
	found    []density.Finding
}

// readDensity measures files, which are named by their path.
func readDensity(src map[string][]byte) (*dense, error) {
	d := &dense{packages: map[string]density.Measure{}}
	for _, name := range slices.Sorted(maps.Keys(src)) {
		if !strings.HasSuffix(name, ".go") {
			continue
		}
		dir := path.Dir(name)
		shipped := product(dir) && !within(dir, "internal/rig") && !strings.HasSuffix(name, "_test.go")
		columns := density.Laboratory
		if shipped {
			columns = density.Product
		}
		size, found, err := density.File(name, src[name], columns)
		if err != nil {
			return nil, err
		}
		d.found = append(d.found, found...)
		if !shipped {
			d.rest.Add(size)
			continue
		}
		sum := d.packages[dir]
		sum.Add(size)
		d.packages[dir] = sum
	}
	return d, nil
}

// print writes a line for each package, and sums. The last line is "density ok", or the number of
// findings.
func (d *dense) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name string, m density.Measure) {
		code := float64(max(m.Code, 1))
		_, _ = fmt.Fprintf(w, "%s\t%d\t%.1f\t%.1f\t%d\n",
			name, m.Code, float64(m.Characters)/code, float64(m.Parallel)*1000/code, m.Findings)
	}
	_, _ = fmt.Fprint(w, "\ndensity\tcode\tcharacters a line\tparallel in 1,000\tfindings\n")
	var sum density.Measure
	for _, dir := range slices.Sorted(maps.Keys(d.packages)) {
		row(dir, d.packages[dir])
		sum.Add(d.packages[dir])
	}
	row("product", sum)
	row("tests and laboratory", d.rest)
	_ = w.Flush()
	if n := len(d.found); n > 0 {
		_, _ = fmt.Fprintf(out, "density: %d findings\n", n)
		return
	}
	_, _ = fmt.Fprintln(out, "density ok")
}

// lint writes what breaks the rules of density in the working tree, and returns the status to exit
// with.
func lint(out io.Writer) int {
	src, err := readTree()
	if err != nil {
		_, _ = fmt.Fprintln(out, "size:", err)
		return 2
	}
	d, err := readDensity(src)
	if err != nil {
		_, _ = fmt.Fprintln(out, "size:", err)
		return 2
	}
	for _, f := range d.found {
		_, _ = fmt.Fprintln(out, f)
	}
	if len(d.found) > 0 {
		return 1
	}
	_, _ = fmt.Fprintln(out, "density ok")
	return 0
}

// readTree returns the Go files of the working tree that git knows, by their path from the root.
func readTree() (map[string][]byte, error) {
	out, err := exec.Command("git", "ls-files", "*.go").Output() //nolint:noctx // its own repository
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	src := map[string][]byte{}
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSpace(name)
		if strings.Contains("/"+name, "/testdata/") {
			continue
		}
		text, err := os.ReadFile(name)
		if os.IsNotExist(err) {
			continue // it was removed, and that is not committed yet
		}
		if err != nil {
			return nil, err
		}
		src[name] = text
	}
	return src, nil
}
