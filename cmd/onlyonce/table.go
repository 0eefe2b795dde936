package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/onlyonce/onlyonce/internal/operate"
)

// A column is how a column of a table gives way if the terminal is too narrow for the table.
type column struct {
	least int  // it is cut to so many characters; 0: never cut
	end   bool // it is cut at its end, and not in its middle
	drop  int  // columns with a higher number are left out first; 0: never left out
}

// columns are the columns that give way, by their headers. All others are shown whole: what they
// have is needed for the next command.
var columns = map[string]column{
	"SCOPE":         {least: 8},
	"TOPIC":         {least: 10},
	"STREAM":        {least: 12},
	"SINK":          {least: 8},
	"NAME":          {least: 8},
	"ORIGIN":        {least: 14},
	"EVENT":         {least: 10},
	"WHAT":          {least: 12, end: true},
	"ERROR":         {least: 12, end: true},
	"HELD BY":       {least: 16, end: true},
	"PARKED":        {least: 12, end: true},
	"STATE":         {least: 8, end: true},
	"REASON":        {least: 8, end: true},
	"STEPS DONE":    {least: 10, end: true, drop: 3},
	"UNKNOWN":       {least: 7, end: true},
	"HOST":          {least: 6, drop: 2},
	"SIZE":          {drop: 5},
	"TENANT":        {least: 6, drop: 4},
	"GROUP":         {least: 6, drop: 3},
	"CLUSTER":       {least: 8, drop: 9},
	"TOPIC ID":      {least: 8, drop: 10},
	"START":         {drop: 8},
	"ANCHOR":        {drop: 7},
	"RUN":           {drop: 6},
	"CLEAN":         {drop: 5},
	"EPOCH":         {drop: 4},
	"UNTIL":         {drop: 3},
	"ATTEMPTS":      {drop: 2},
	"AGE":           {drop: 1},
	"SCOPE OR SINK": {least: 13},
	"KIND":          {drop: 1},
	"DERIVED":       {drop: 6},
	"PARKED AT":     {drop: 2},
	"SETTLED AT":    {drop: 5},
	"EXPIRES":       {drop: 3},
	"CLOSED AGO":    {drop: 2},
	"KEYS, ABOUT":   {drop: 1},
}

// columnGap is how many spaces are between two columns.
const columnGap = 2

// table writes rows under a header, in columns that fit the terminal.
func (a *app) table(header []string, rows [][]string) {
	for _, row := range rows {
		for i := range row {
			row[i] = cell(row[i])
		}
	}
	header, rows, left := fitted(header, rows, a.wrap.width)
	widths := widthsOf(header, rows)
	for _, row := range append([][]string{header}, rows...) {
		var line strings.Builder
		for i, text := range row {
			if i > 0 {
				line.WriteString(strings.Repeat(" ", columnGap))
			}
			line.WriteString(text)
			line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text)))
		}
		_, _ = fmt.Fprintln(a.out, strings.TrimRight(line.String(), " ")) // a.out keeps its error
	}
	if len(left) > 0 {
		_, _ = fmt.Fprintf(a.out, "Too narrow for %s: pipe it through `less -S` to see all.\n",
			strings.Join(left, ", "))
	}
}

// fitted makes a table at most width characters wide, 0: any. It leaves out columns without a
// value, cuts the columns that can be cut, and then leaves out columns, whose headers it returns.
func fitted(header []string, rows [][]string, width int) (head []string, body [][]string, left []string) {
	drop := func(i int) {
		header = slices.Delete(slices.Clone(header), i, i+1)
		for r := range rows {
			rows[r] = slices.Delete(slices.Clone(rows[r]), i, i+1)
		}
	}
	rows = slices.Clone(rows)
	for width > 0 && tableWidth(header, rows) > width {
		if i := emptyColumn(header, rows); i >= 0 {
			drop(i)
			continue
		}
		if narrow(header, rows, width, func(h string) int { return columns[h].least }) {
			break
		}
		last := -1
		for i, h := range header {
			if d := columns[h].drop; d > 0 && (last < 0 || d > columns[header[last]].drop) {
				last = i
			}
		}
		if last < 0 {
			narrow(header, rows, width, func(string) int { return 4 })
			break
		}
		left = append(left, header[last])
		drop(last)
	}
	return header, rows, left
}

// emptyColumn returns a column in which no row has a value, -1 if there is none.
func emptyColumn(header []string, rows [][]string) int {
	return slices.IndexFunc(header, func(h string) bool {
		i := slices.Index(header, h)
		return columns[h] != (column{}) && !slices.ContainsFunc(rows, func(r []string) bool { return r[i] != "-" })
	})
}

// narrow cuts cells, of the widest columns first, until the table fits. It reports false, and cuts
// nothing, if it would not fit. least is to how many characters a column may be cut, 0: not at all.
func narrow(header []string, rows [][]string, width int, least func(header string) int) bool {
	widths := widthsOf(header, rows)
	over := tableWidth(header, rows) - width
	for ; over > 0; over-- {
		widest := -1
		for i, h := range header {
			n := least(h)
			shrinks := n > 0 && widths[i] > max(n, utf8.RuneCountInString(h))
			if shrinks && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return false
		}
		widths[widest]--
	}
	for r := range rows {
		rows[r] = slices.Clone(rows[r])
		for i, h := range header {
			rows[r][i] = cutTo(rows[r][i], widths[i], columns[h].end)
		}
	}
	return true
}

// cutTo cuts text to n characters, at its end or in its middle: names often differ at their ends.
func cutTo(s string, n int, end bool) string {
	r := []rune(s)
	switch {
	case len(r) <= n:
		return s
	case end || n < 5:
		return string(r[:n-1]) + "…"
	}
	tail := (n - 1) / 2
	return string(r[:n-1-tail]) + "…" + string(r[len(r)-tail:])
}

func widthsOf(header []string, rows [][]string) []int {
	widths := make([]int, len(header))
	for _, row := range append([][]string{header}, rows...) {
		for i, text := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	return widths
}

func tableWidth(header []string, rows [][]string) int {
	sum := columnGap * (len(header) - 1)
	for _, w := range widthsOf(header, rows) {
		sum += w
	}
	return sum
}

// writeRows writes a table of rows, unless there are none.
func writeRows[T any](a *app, columns operate.Columns[T], rows []T) { a.section(columns.Table(rows)) }

// section writes a table unless it is empty.
func (a *app) section(header []string, rows [][]string) {
	if len(rows) > 0 {
		a.table(header, rows)
	}
}

// say writes a line.
func (a *app) say(format string, args ...any) {
	_, _ = fmt.Fprintf(a.out, format+"\n", args...)
}

// paste writes a command that can be pasted into a shell.
func (a *app) paste(command string) {
	_, _ = fmt.Fprintln(a.out, pasted(command, a.wrap.width))
}

// whole ends the breaking of lines, for output that programs read.
func (a *app) whole() {
	_ = a.out.Flush() // it keeps its error
	a.wrap.width = 0
}

// writeJSON writes one value as one line.
func (a *app) writeJSON(v any) error {
	a.whole()
	var line bytes.Buffer
	e := json.NewEncoder(&line)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := a.out.Write(printableJSON(line.Bytes()))
	return err
}

// printableJSON escapes the characters of JSON's strings that are not printable. encoding/json
// leaves those above 0x7e as they are, and a terminal obeys some of them: U+009B begins a command,
// U+202E turns the direction of text.
func printableJSON(line []byte) []byte {
	out := make([]byte, 0, len(line))
	for _, r := range string(line) {
		if r < 0x7f || unicode.IsPrint(r) {
			out = utf8.AppendRune(out, r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			out = fmt.Appendf(out, `\u%04x`, unit)
		}
	}
	return out
}
