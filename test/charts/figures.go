package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// measured are the lines of docs/results/bench.md that the chart of costs shows.
var measured = []struct{ name, label string }{
	{"P1a", "one message a transaction"},
	{"P3", "batches of 100, positions only"},
	{"P1b", "batches of 100, ids ordered by time"},
	{"P2b", "batches of 100, random ids"},
	{"P13a", "a call for each message of a batch"},
	{"P13b", "a call in a transaction of yours"},
	{"P18", "a relay that sends calls"},
	{"P16a", "an HTTP request"},
	{"P16b", "a replayed HTTP answer"},
	{"P20a", "a webhook, stored"},
}

// figure is a median with the least and the most of its rounds: 0.63 (0.58, 0.67).
var figure = regexp.MustCompile(`([\d.]+) \(([\d.]+), ([\d.]+)\)`)

// cells returns the rows of all tables of a document, by their first cell.
func cells(root, name string) (map[string][]string, error) {
	text, err := os.ReadFile(filepath.Join(root, name)) //nolint:gosec // of this repository
	if err != nil {
		return nil, err
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if parts := strings.Split(strings.TrimSpace(line), "|"); len(parts) > 3 {
			for i := range parts {
				parts[i] = strings.TrimSpace(parts[i])
			}
			all[parts[1]] = parts[2 : len(parts)-1]
		}
	}
	return all, nil
}

// cost is what onlyonce leaves of the throughput of the same work by hand.
func cost(root string) (chart, error) {
	c := chart{
		title: "Throughput with onlyonce, the same work by hand = 1",
		note:  "median; the line is the least and the most of five rounds; 2 cores, 26 November 2026",
		most:  1.1, marks: []float64{0, 0.25, 0.5, 0.75, 1}, series: []string{"onlyonce"},
	}
	rows, err := cells(root, "docs/results/bench.md")
	if err != nil {
		return c, err
	}
	for _, m := range measured {
		row := rows[m.name]
		if len(row) < 2 {
			return c, fmt.Errorf("docs/results/bench.md has no row %s", m.name)
		}
		r, err := parsed(row[1])
		if err != nil {
			return c, fmt.Errorf("docs/results/bench.md, %s: %w", m.name, err)
		}
		c.add(m.label, r)
	}
	return c, nil
}

// parsed reads a figure.
func parsed(text string) (bar, error) {
	m := figure.FindStringSubmatch(text)
	if m == nil {
		return bar{}, fmt.Errorf("no figure in %q", text)
	}
	var values [3]float64
	for i := range values {
		v, err := strconv.ParseFloat(m[i+1], 64)
		if err != nil {
			return bar{}, err
		}
		values[i] = v
	}
	return bar{value: values[0], least: values[1], most: values[2], text: m[1]}, nil
}

func (c *chart) add(label string, bars ...bar) {
	c.rows = append(c.rows, row{label: label, bars: bars})
}
