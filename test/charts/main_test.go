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
	results, err := filepath.Glob(root + "/docs/results/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(results, root+"/README.md", root+"/docs/performance.md") {
		text, err := os.ReadFile(page)
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

// Each kind of figure is read with its rounds, and nothing else is taken for one.
func TestFiguresAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bar{
		"0.63 (0.58, 0.67): short":                            {value: 0.63, least: 0.58, most: 0.67, text: "0.63"},
		"1.79: ok (1.78 to 2.05; 118,000 keys a second)":      {value: 1.79, least: 1.78, most: 2.05, text: "1.79"},
		"0.07 (0.03, 0.11; another run 0.05)":                 {value: 0.07, least: 0.03, most: 0.11, text: "0.07"},
		"0.18: ok (630 to 656 B against 3451 to 3782 B)":      {value: 0.18, text: "0.18"},
		"0.19 (0.18, 0.22): 2,000 to 2,400 requests a second": {value: 0.19, least: 0.18, most: 0.22, text: "0.19"},
		"1.03: ok": {value: 1.03, text: "1.03"},
	} {
		if got, err := parsed(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	if got, err := parsed("about 3"); err == nil {
		t.Errorf("no figure was read as %+v", got)
	}
	for cell, want := range map[string]int{"12": 12, "(7)": 7, "-": 0} {
		if n, bracketed, err := count(cell); n != want || bracketed != (cell == "(7)") || err != nil {
			t.Errorf("%q: %d, %v, %v", cell, n, bracketed, err)
		}
	}
}

// Bars of the chart of the held snapshot are long enough for the largest figure.
func TestHeldSnapshot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	page := "# The held snapshot\n\n| Way | Rate | First | Last | Last / first | CPU | Dead rows |\n|---|---|---|---|---|---|---|\n" +
		"| PgQ | 1000 | 1000 | 990 | 0.99 | 1.10 | 114 |\n| River | 1000 | 1000 | 480 | 0.48 | 2.46 | 9 |\n\n- PgQ: Debian's.\n"
	if err := os.MkdirAll(filepath.Join(dir, "docs/results"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "docs/results/held.md"), []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := snapshot(dir)
	if err != nil || len(c.rows) != 2 || c.most != 2.46 {
		t.Fatalf("%+v, %v", c, err)
	}
	if r := c.rows[1]; r.label != "River" || r.bars[0].value != 0.48 || r.bars[1].value != 2.46 {
		t.Errorf("%+v", r)
	}
}
