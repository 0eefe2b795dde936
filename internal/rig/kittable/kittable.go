// Package kittable is the table of `make kit`: what onlyoncetest says of programs as teams write
// them, sound ones and faulty ones.
package kittable

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// EnvRows names a file for rows of programs that are in another module than the table.
const EnvRows = "ONLYONCE_KIT_ROWS"

// EnvTable names a file for the table: go test does not print what a test that passes has written.
const EnvTable = "ONLYONCE_KIT_TABLE"

// Show writes the table to that file, or prints it if none is named.
func Show(rows []Row) error {
	if path := os.Getenv(EnvTable); path != "" {
		return os.WriteFile(path, []byte(Table(rows)), 0o600)
	}
	_, err := fmt.Print(Table(rows))
	return err
}

// Row is what one program's run has shown.
type Row struct {
	Name   string
	Faulty bool
	// First is the verdict of the kit before it knew this program; empty for none. It is what the
	// table compares with, and no test looks at it.
	First string
	// Want is the verdict that a faulty program must have, or one of these, if it depends on what
	// comes first in a run.
	Want []string
	// Got is the verdict, and empty for none.
	Got string

	Seconds                 float64
	Points, Singles, Played int // Played are single faults
}

// Right reports whether a faulty program was caught, or a sound one acquitted.
func (r Row) Right() bool {
	if !r.Faulty {
		return r.Got == ""
	}
	return slices.Contains(r.Want, r.Got)
}

// Keep appends a row to the file that EnvRows names, if it is set.
func Keep(r Row) error {
	path := os.Getenv(EnvRows)
	if path == "" {
		return nil
	}
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// Kept returns the rows of that file. There are none without it.
func Kept() (rows []Row, err error) {
	path := os.Getenv(EnvRows)
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(text) {
		var r Row
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// Table returns the table, and its last line.
func Table(rows []Row) string {
	rows = slices.Clone(rows)
	slices.SortFunc(rows, func(a, b Row) int { return strings.Compare(a.Name, b.Name) })
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "PROGRAM\tIS\tFIRST VERDICT\tVERDICT\tSECONDS\tPOINTS\tPLAYED\tRIGHT")
	wrong := 0
	for _, r := range rows {
		is := "sound"
		if r.Faulty {
			is = "faulty"
		}
		right := "yes"
		if !r.Right() {
			wrong++
			right = "NO"
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.1f\t%d\t%d of %d\t%s\n", r.Name, is, cmp.Or(r.First, "none"),
			cmp.Or(r.Got, "none"), r.Seconds, r.Points, r.Played, r.Singles, right)
	}
	_ = w.Flush()
	result := "ok"
	if wrong > 0 {
		result = "FAILED"
	}
	_, _ = fmt.Fprintf(&b, "kit %s programs=%d wrong=%d\n", result, len(rows), wrong)
	return b.String()
}
