// Package results keeps the newest result of each check in a table of a Markdown file, so that the
// parts of a long run can be run on different days.
package results

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Table is the last table of a Markdown file. Its first column names the rows.
type Table struct {
	File    string   // is made if it does not exist
	Heading string   // the line above the table, for example "## Rows"
	Columns []string // the first names the row
}

// Read returns the rows by name, without the column of names. A file or heading that does not exist
// has no rows.
func (t Table) Read() (map[string][]string, error) {
	_, section, err := t.parts()
	if err != nil {
		return nil, err
	}
	rows := map[string][]string{}
	for i, line := range strings.Split(section, "\n") {
		cells, ok := split(line)
		if !ok || i < 2 { // the names of the columns, and the line below them
			continue
		}
		if len(cells) != len(t.Columns) {
			return nil, fmt.Errorf("%s: a row of %q has %d cells, must have %d: %s", t.File, t.Heading, len(cells), len(t.Columns), line)
		}
		rows[cells[0]] = cells[1:]
	}
	return rows, nil
}

// Write replaces the table by rows, in their order. What is above the heading stays as it is.
func (t Table) Write(rows [][]string) error {
	before, _, err := t.parts()
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString(before)
	b.WriteString(t.Heading + "\n\n")
	b.WriteString(join(t.Columns) + "\n|" + strings.Repeat("---|", len(t.Columns)) + "\n")
	for _, r := range rows {
		if len(r) != len(t.Columns) {
			return fmt.Errorf("%s: row %q has %d cells, must have %d", t.File, r, len(r), len(t.Columns))
		}
		b.WriteString(join(r) + "\n")
	}
	// If a write is interrupted, the old file stays.
	next, err := os.CreateTemp(filepath.Dir(t.File), ".results")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(next.Name()) }()
	_, err = next.WriteString(b.String())
	if err := errors.Join(err, next.Chmod(0o644), next.Close()); err != nil {
		return err
	}
	return os.Rename(next.Name(), t.File)
}

// parts returns what is above the heading, and the lines of the table.
func (t Table) parts() (before, section string, err error) {
	text, err := os.ReadFile(t.File)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", "", err
	}
	before, section, found := strings.Cut("\n"+string(text), "\n"+t.Heading+"\n")
	before = strings.TrimPrefix(before, "\n")
	if !found {
		return strings.TrimRight(before, "\n") + "\n\n", "", nil
	}
	section = strings.TrimSpace(section)
	for line := range strings.SplitSeq(section, "\n") {
		if line != "" && !strings.HasPrefix(line, "|") {
			return "", "", fmt.Errorf("%s: %q must be the last heading, with nothing but a table below it; found %q", t.File, t.Heading, line)
		}
	}
	return before + "\n", section, nil
}

func join(cells []string) string {
	escaped := make([]string, len(cells))
	for i, c := range cells {
		escaped[i] = strings.ReplaceAll(strings.ReplaceAll(c, "\n", " "), "|", `\|`)
	}
	return "| " + strings.Join(escaped, " | ") + " |"
}

func split(line string) (cells []string, ok bool) {
	inner, ok := strings.CutPrefix(line, "| ")
	if !ok {
		return nil, false
	}
	inner, ok = strings.CutSuffix(inner, " |")
	if !ok {
		return nil, false
	}
	for _, c := range strings.Split(strings.ReplaceAll(inner, `\|`, "\x00"), " | ") {
		cells = append(cells, strings.ReplaceAll(c, "\x00", "|"))
	}
	return cells, true
}

// Part is part K of N, counted from 1.
type Part struct{ K, N int }

// ParsePart reads "k/n".
func ParsePart(s string) (p Part, err error) {
	k, n, ok := strings.Cut(s, "/")
	if ok {
		p.K, err = strconv.Atoi(k)
		if err == nil {
			p.N, err = strconv.Atoi(n)
		}
	}
	if !ok || err != nil || p.K < 1 || p.K > p.N {
		return Part{}, fmt.Errorf("part %q: must be k/n with 1 <= k <= n, for example 3/20", s)
	}
	return p, nil
}

func (p Part) String() string { return fmt.Sprintf("%d/%d", p.K, p.N) }

// Range returns the bounds of the part of a list of length items. All parts together are the whole
// list.
func (p Part) Range(length int) (from, to int) { return length * (p.K - 1) / p.N, length * p.K / p.N }

// Commit returns the last commit that changed anything but docs/results, with "+" added if the tree
// has further changes. So a commit of results does not make them old.
func Commit(ctx context.Context) (string, error) {
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", append(args, "--", ".", ":!docs/results")...).Output()
		if err != nil {
			return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
		}
		return strings.TrimSpace(string(out)), nil
	}
	commit, err := git("log", "-1", "--format=%h", "--abbrev=9")
	if err != nil {
		return "", err
	}
	changes, err := git("status", "--porcelain")
	if err != nil {
		return "", err
	}
	if changes != "" {
		commit += "+"
	}
	return commit, nil
}
