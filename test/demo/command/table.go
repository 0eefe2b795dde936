package command

import (
	"fmt"
	"io"
	"strings"

	"github.com/onlyonce/onlyonce/test/screen"
)

// Table is a report as people read it: rows of counts, and then what they prove or what is wrong.
type Table struct {
	Out   io.Writer
	Paint func(color, text string) string
}

// Space writes an empty line.
func (t *Table) Space() { _, _ = fmt.Fprintln(t.Out) }

// Row writes a count and what it counts.
func (t *Table) Row(name string, n int, note string, args ...any) {
	line := fmt.Sprintf("  %-13s %10s   %s", name, screen.Count(int64(n)), fmt.Sprintf(note, args...))
	_, _ = fmt.Fprintln(t.Out, strings.TrimRight(line, " "))
}

// Good writes what the rows prove.
func (t *Table) Good(sentence string) {
	_, _ = fmt.Fprintln(t.Out, t.Paint(screen.Green, "ok")+"  "+screen.Wrap(sentence, 76, "    "))
}

// Wrong writes what does not hold.
func (t *Table) Wrong(format string, args ...any) {
	_, _ = fmt.Fprintln(t.Out, t.Paint(screen.Red, "WRONG")+"  "+screen.Wrap(fmt.Sprintf(format, args...), 72, "       "))
}
