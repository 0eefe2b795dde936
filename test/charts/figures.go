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
	{"P1a", "one message a transaction, 1 connection"},
	{"P1b", "the same on 8 connections"},
	{"P3", "batches of 100, positions only"},
	{"P2a", "batches of 100, ids ordered by time"},
	{"P2b", "batches of 100, random ids"},
	{"P13a", "a call for each message of a batch"},
	{"P13b", "a call in a transaction of yours"},
	{"P18", "a relay that sends calls"},
	{"P16a", "an HTTP request"},
	{"P16b", "a replayed HTTP answer"},
	{"P20a", "a webhook, stored"},
}

// figure is a median, with the least and the most of its rounds if they are recorded:
// 0.63 (0.58, 0.67), 1.79: ok (1.78 to 2.05; ...), or 1.03: ok.
var figure = regexp.MustCompile(`^([\d.]+)(?:: \w+)?(?: \(([\d.]+)(?:,| to) ([\d.]+)[;,)])?`)

// cells returns the rows of all tables of a document, by their first cell: of two with one name the
// first, because tables further down compare it with other commits.
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
			if all[parts[1]] == nil {
				all[parts[1]] = parts[2 : len(parts)-1]
			}
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
		if m[i+1] == "" {
			continue
		}
		v, err := strconv.ParseFloat(m[i+1], 64)
		if err != nil {
			return bar{}, err
		}
		values[i] = v
	}
	return bar{value: values[0], least: values[1], most: values[2], text: m[1]}, nil
}

// remembered are the lines of docs/results/bench.md that the chart of the inbox shows, with the
// column of each.
var remembered = []struct {
	name, label string
	column      int
}{
	{"P8b", "claims a second, 50 million kept, 10 s", 1},
	{"P8b", "the same, over a minute", 2},
	{"P8c", "WAL of a claim, 10 s", 1},
	{"P8c", "the same, over a minute", 2},
	{"P9a", "time to forget a million keys", 1},
	{"P8a", "claims a second, 50 million kept; 1 million = 1", 2},
}

// keys is what the inbox does with many keys, compared with one table.
func keys(root string) (chart, error) {
	c := chart{
		title: "Remembering random keys: the inbox, one table with an index = 1",
		note:  "median; the line is the least and the most of three rounds; 2 cores, 22 November 2026 (P8, P9)",
		most:  2.25, marks: []float64{0, 0.5, 1, 1.5, 2}, series: []string{"onlyonce"},
	}
	rows, err := cells(root, "docs/results/bench.md")
	if err != nil {
		return c, err
	}
	for _, m := range remembered {
		row := rows[m.name]
		if len(row) <= m.column {
			return c, fmt.Errorf("docs/results/bench.md has no row %s", m.name)
		}
		r, err := parsed(row[m.column])
		if err != nil {
			return c, fmt.Errorf("docs/results/bench.md, %s: %w", m.name, err)
		}
		c.add(m.label, r)
	}
	return c, nil
}

// doubles is what each way to consume has doubled and lost under kills. What a library does not
// promise stands in brackets in the table: the chart names it, and draws no bar of it.
func doubles(root string) (chart, error) {
	const page = "docs/results/doubles.md"
	c := chart{
		title: "Effects doubled and lost, by the way to consume",
		most:  10_000, marks: []float64{0, 1, 10, 100, 1000, 10_000}, series: []string{"doubled", "lost"}, log: true,
	}
	table, err := tableOf(root, page, "| Way |")
	if err != nil {
		return c, err
	}
	text, err := os.ReadFile(filepath.Join(root, page)) //nolint:gosec // of this repository
	if err != nil {
		return c, err
	}
	c.note = played.FindString(string(text))
	if c.note == "" {
		return c, fmt.Errorf("%s does not say what was played", page)
	}
	c.note += " The scale is logarithmic."
	for _, cells := range table {
		var counted, apart int
		for _, cell := range cells[1:4] {
			n, bracketed, err := count(cell)
			switch {
			case err != nil:
				return c, fmt.Errorf("%s, %s: %w", page, cells[0], err)
			case bracketed:
				apart += n
			default:
				counted += n
			}
		}
		lost, _, err := count(cells[4])
		if err != nil {
			return c, fmt.Errorf("%s, %s: %w", page, cells[0], err)
		}
		doubled := bar{value: float64(counted), text: strconv.Itoa(counted)}
		if apart > 0 {
			doubled.text += fmt.Sprintf(" (and %d, not promised)", apart)
		}
		c.add(strings.ReplaceAll(cells[0], "`", ""), doubled, bar{value: float64(lost), text: strconv.Itoa(lost)})
	}
	return c, nil
}

// played is the sentence of the page that says what was played.
var played = regexp.MustCompile(`(?m)^\d+ messages .*$`)

// count reads a cell: 12, (12) if it is not promised, or - if there is no such fault.
func count(cell string) (n int, bracketed bool, err error) {
	if cell == "-" {
		return 0, false, nil
	}
	inner := strings.TrimSuffix(strings.TrimPrefix(cell, "("), ")")
	n, err = strconv.Atoi(inner)
	return n, inner != cell, err
}

// snapshot is what a held snapshot does to queues: their throughput, and what an event costs.
func snapshot(root string) (chart, error) {
	const page = "docs/results/held.md"
	c := chart{
		title: "Beside a held snapshot: the last minutes, the first = 1",
		note:  "docs/results/held.md has rates, dead rows and WAL",
		most:  1.25, marks: []float64{0, 0.5, 1}, series: []string{"throughput", "CPU an event"},
	}
	table, err := tableOf(root, page, "| Way |")
	if err != nil {
		return c, err
	}
	for _, cells := range table {
		throughput, err := parsed(cells[4])
		if err != nil {
			return c, fmt.Errorf("%s, %s: %w", page, cells[0], err)
		}
		cpu, err := parsed(cells[5])
		if err != nil {
			return c, fmt.Errorf("%s, %s: %w", page, cells[0], err)
		}
		c.add(cells[0], throughput, cpu)
		c.most = max(c.most, throughput.value, cpu.value)
	}
	for mark := 2.0; mark <= c.most; mark *= 2 {
		c.marks = append(c.marks, mark)
	}
	return c, nil
}

// tableOf returns the cells of the rows of the table that begins with a head.
func tableOf(root, name, head string) ([][]string, error) {
	text, err := os.ReadFile(filepath.Join(root, name)) //nolint:gosec // of this repository
	if err != nil {
		return nil, err
	}
	_, rest, found := strings.Cut(string(text), "\n"+head)
	if !found {
		return nil, fmt.Errorf("%s has no table %s", name, head)
	}
	var all [][]string
	for i, line := range strings.Split(rest, "\n") {
		if i > 0 && !strings.HasPrefix(line, "|") {
			break
		}
		if i < 2 { // the head and the line below it
			continue
		}
		parts := strings.Split(strings.Trim(line, "|"), "|")
		for i := range parts {
			parts[i] = strings.TrimSpace(parts[i])
		}
		if len(parts) < 6 {
			return nil, fmt.Errorf("%s: a short row: %s", name, line)
		}
		all = append(all, parts)
	}
	return all, nil
}

func (c *chart) add(label string, bars ...bar) {
	c.rows = append(c.rows, row{label: label, bars: bars})
}
