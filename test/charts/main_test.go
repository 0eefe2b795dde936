package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// Each chart is what the program draws of the recorded figures, and a page shows it.
func TestChartsAreDrawnFromTheirFigures(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(root + "/docs/charts/*.svg")
	if err != nil || len(files) != len(all) {
		t.Fatalf("%d files for %d charts: %v", len(files), len(all), err)
	}
	shown := ""
	for _, page := range []string{"README.md", "docs/performance.md"} {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		shown += string(text)
	}
	for name, figures := range all {
		c, err := figures(root)
		if err != nil {
			t.Fatal(err)
		}
		file, err := os.ReadFile(filepath.Join(root, "docs/charts", name))
		if err != nil || string(file) != c.svg() {
			t.Errorf("%s is not what its figures say (%v): run go run ./test/charts", name, err)
		}
		if !strings.Contains(shown, "charts/"+name) {
			t.Errorf("no page shows %s", name)
		}
		for _, r := range c.rows {
			for _, b := range r.bars {
				if !strings.Contains(string(file), ">"+b.text+"</text>") {
					t.Errorf("%s does not show %s of %s", name, b.text, r.label)
				}
			}
		}
	}
}

// The scale ends at the most: a bar beyond it would look shorter than it is.
func TestChartsShowNoBarShorterThanItIs(t *testing.T) {
	t.Parallel()
	for name, figures := range all {
		c, err := figures(root)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range c.rows {
			for _, b := range r.bars {
				if max(b.value, b.most) > c.most {
					t.Errorf("%s: %s is %v, and the scale ends at %v", name, r.label, b.value, c.most)
				}
			}
		}
	}
}
