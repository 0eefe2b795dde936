package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// writeTable writes rows under a header, in columns.
func writeTable(w io.Writer, header []string, rows [][]string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, strings.Join(header, "\t"))
	for _, row := range rows {
		for i := range row {
			row[i] = cell(row[i])
		}
		_, _ = fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	_ = t.Flush() // w keeps its error
}

// writeJSON writes one value as one line.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// cell makes text safe for a terminal and for a column: names and errors come from messages, and
// may hold anything, for example escape sequences.
func cell(s string) string {
	if s == "" {
		return "-"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD'
	}, s)
}

// oneLine makes one line of text that may hold several.
func oneLine(s string) string {
	return cell(strings.Join(strings.Fields(s), " "))
}

// firstLine returns the first line of s, cut to limit characters.
func firstLine(s string, limit int) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	s = strings.TrimSpace(s)
	if r := []rune(s); len(r) > limit {
		return string(r[:limit-1]) + "…"
	}
	return s
}

func orDash(s *string) string {
	if s == nil {
		return "-"
	}
	return *s
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// instant shows a time in UTC.
func instant(t time.Time) string {
	return t.UTC().Format("2006-01-02 15:04:05Z")
}
