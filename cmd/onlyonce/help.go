package main

import (
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/program"
)

// help answers `onlyonce help [COMMAND]`.
func (a *app) help(args []string) int {
	if len(args) == 0 {
		usage(a.out, groups())
		return statusGood
	}
	if c, rest, ok := find(args); ok && len(rest) == 0 {
		c.writeHelp(a.out)
		return statusGood
	}
	if family := below(args[0]); len(family) > 0 && len(args) == 1 {
		usage(a.out, []group{{"Commands", family}})
		return statusGood
	}
	a.unknown("onlyonce help", args)
	return statusEnvironment
}

// usage lists commands.
func usage(w io.Writer, list []group) {
	_, _ = fmt.Fprint(w, "Usage: onlyonce COMMAND [FLAGS]\n")
	width := 0
	for _, g := range list {
		for _, c := range g.commands {
			width = max(width, len(c.name))
		}
	}
	for _, g := range list {
		_, _ = fmt.Fprintf(w, "\n%s:\n", g.title)
		for _, c := range g.commands {
			_, _ = fmt.Fprintf(w, "  %-*s  %s\n", width, c.name, c.summary)
		}
	}
	_, _ = fmt.Fprint(w, `
`+"`onlyonce help COMMAND`"+` explains one. Every command takes the database from
-postgres URL, or else from the environment variable `+program.EnvPostgres+`.
On a terminal, lists fit its width, or COLUMNS. In a pipe they are whole.

Exit status: 0 good; 1 looked and not done (the answer was no, or things had
changed meanwhile), or a check of doctor failed; 2 usage or environment.
`)
}

// synopsis is how the command is called, after a word such as "usage", on lines that fit.
func (c command) synopsis(word string) string {
	head := word + ": onlyonce " + c.name
	var lines []string
	line := head
	for _, part := range parts(c.args) {
		if len(line)+1+len(part) > usualWidth {
			lines = append(lines, line)
			line = strings.Repeat(" ", len(word)+3)
		}
		line += " " + part
	}
	return strings.Join(append(lines, line), "\n")
}

// parts splits a synopsis at the spaces outside of its brackets. A part that does not fit on a line
// is split at all spaces.
func parts(args string) []string {
	var found []string
	depth := 0
	from := 0
	for i, r := range args + " " {
		switch {
		case r == '[' || r == '(':
			depth++
		case r == ']' || r == ')':
			depth--
		case r == ' ' && depth == 0 && i > from:
			part := args[from:i]
			if len(part) > usualWidth/2 {
				found = append(found, strings.Fields(part)...)
			} else {
				found = append(found, part)
			}
			from = i + 1
		}
	}
	return found
}

// writeHelp writes the whole help of a command.
func (c command) writeHelp(w io.Writer) {
	_, _ = fmt.Fprintf(w, "%s\n\n%s\n\nFlags:\n", c.synopsis("Usage"), laidOut(c.help, usualWidth))
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	c.setup(fs)
	fs.VisitAll(func(f *flag.Flag) {
		name, text := flag.UnquoteUsage(f)
		_, _ = fmt.Fprintf(w, "  -%s\n%s\n", strings.TrimSpace(f.Name+" "+name), wrapped("      "+text, usualWidth))
	})
	for _, of := range c.json {
		what := "one object"
		if c.lines {
			what = "one object a line"
		}
		if len(c.json) > 1 {
			what += ", " + of.Name()
		}
		_, _ = fmt.Fprintf(w, "\nWith -json, %s:\n", what)
		for _, line := range operate.JSON(of) {
			_, _ = fmt.Fprintln(w, wrapped("  "+line, usualWidth))
		}
	}
}

// laidOut breaks a help text into lines of at most width characters. Lines without an indent make
// paragraphs. Lines with the least indent of a list begin an item, further ones continue it. A
// command is broken so that it can be pasted.
func laidOut(text string, width int) string {
	var out []string
	item := ""
	flush := func() {
		if command := strings.TrimSpace(item); strings.HasPrefix(item, "  ") &&
			strings.HasPrefix(command, "onlyonce ") {
			out = append(out, pasted(command, width))
		} else if item != "" {
			out = append(out, wrapped(item, width))
		}
		item = ""
	}
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		indent := len(line) - len(strings.TrimLeft(line, " "))
		switch {
		case line == "":
			flush()
			out = append(out, "")
		case indent == 2:
			flush()
			item = line
		case indent == 0 && !strings.HasPrefix(item, " ") && item != "", indent > 2:
			item += " " + strings.TrimSpace(line)
		default:
			flush()
			item = line
		}
	}
	flush()
	return strings.Join(out, "\n")
}
