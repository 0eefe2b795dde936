package main

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/mattn/go-isatty"
)

// usualWidth is how many characters a line of a terminal has if it does not say, and how wide help
// is at most.
const usualWidth = 80

// leastWidth is the narrowest width that lists are fitted to.
const leastWidth = 40

// widthOf returns how many characters a line of w may have, or 0 for any number. It is what COLUMNS
// says, or else the width of the terminal. In a file or a pipe lines are as long as they are.
func widthOf(w io.Writer, env func(string) string) int {
	if n, err := strconv.Atoi(env("COLUMNS")); err == nil && n > 0 {
		return max(n, leastWidth)
	}
	f, ok := w.(*os.File)
	if !ok || !isatty.IsTerminal(f.Fd()) && !isatty.IsCygwinTerminal(f.Fd()) {
		return 0
	}
	if n := terminalWidth(f); n > 0 {
		return max(n, leastWidth)
	}
	return usualWidth
}

// wrapper breaks lines that are longer than width characters. Call end after the last write.
type wrapper struct {
	w     io.Writer
	width int    // 0: lines are not broken
	line  []byte // the begin of a line
}

func (w *wrapper) Write(p []byte) (int, error) {
	if w.width == 0 {
		if err := w.end(); err != nil {
			return 0, err
		}
		return w.w.Write(p)
	}
	w.line = append(w.line, p...)
	for {
		i := bytes.IndexByte(w.line, '\n')
		if i < 0 {
			return len(p), nil
		}
		if _, err := io.WriteString(w.w, wrapped(string(w.line[:i]), w.width)+"\n"); err != nil {
			return 0, err
		}
		w.line = w.line[i+1:]
	}
}

// end writes the begin of a line that has no end.
func (w *wrapper) end() error {
	if len(w.line) == 0 {
		return nil
	}
	_, err := io.WriteString(w.w, wrapped(string(w.line), w.width))
	w.line = nil
	return err
}

// wrapped breaks one line at spaces. Further lines are indented as the text of the first. What is
// in backquotes is kept together if it can be.
func wrapped(line string, width int) string {
	rest := []rune(line)
	if width <= 0 || len(rest) <= width {
		return line
	}
	hang := strings.Repeat(" ", hanging(line, width))
	var b strings.Builder
	for len(rest) > width {
		at := breakAt(rest, width)
		b.WriteString(strings.TrimRight(string(rest[:at]), " "))
		b.WriteByte('\n')
		rest = []rune(hang + strings.TrimLeft(string(rest[at:]), " "))
	}
	b.WriteString(string(rest))
	return b.String()
}

// breakAt returns where to break a line: at the last space that fits, outside of backquotes if
// there is such a space.
func breakAt(line []rune, width int) int {
	outside := 0
	inside := 0
	quoted := false
	begun := false
	for i := 0; i <= width && i < len(line); i++ {
		switch {
		case line[i] == '`':
			quoted = !quoted
			begun = true
		case line[i] != ' ':
			begun = true
		case begun && quoted:
			inside = i
		case begun:
			outside = i
		}
	}
	switch {
	case outside > 0:
		return outside
	case inside > 0:
		return inside
	}
	return width
}

// hanging returns how far the further lines of a broken line are indented: as the second column of
// a line that has one, as the text of an item of a list, or as the line.
func hanging(line string, width int) int {
	body := strings.TrimLeft(line, " ")
	indent := len(line) - len(body)
	if label, text, ok := strings.Cut(body, "  "); ok {
		column := indent + utf8.RuneCountInString(label) + 2 + len(text) - len(strings.TrimLeft(text, " "))
		if column <= width/2 {
			return column
		}
	}
	if strings.HasPrefix(body, "- ") {
		return indent + 2
	}
	return indent
}

// pasted is a command for a shell, on lines of at most width characters that can be pasted as they
// are.
func pasted(command string, width int) string {
	const indent, further = "  ", "      "
	if width <= 0 || utf8.RuneCountInString(indent+command) <= width {
		return indent + command
	}
	var b strings.Builder
	line := indent
	for i, word := range shellWords(command) {
		switch {
		case i == 0:
		case utf8.RuneCountInString(line+" "+word+" \\") > width:
			b.WriteString(line + " \\\n")
			line = further
		default:
			line += " "
		}
		line += word
	}
	return b.String() + line
}

// shellWords splits a command at the spaces that a shell splits it at. The words stay quoted.
// Outside of quotes and in double ones a backslash takes the next byte; in single ones it is a
// character like others.
func shellWords(command string) []string {
	var words []string
	begun := 0
	quote := byte(0)
	for i := 0; i < len(command); i++ {
		switch c := command[i]; {
		case c == '\\' && quote != '\'':
			i++
		case c == quote:
			quote = 0
		case quote != 0:
		case c == '\'' || c == '"':
			quote = c
		case c == ' ':
			if begun < i {
				words = append(words, command[begun:i])
			}
			begun = i + 1
		}
	}
	return append(words, command[begun:])
}
