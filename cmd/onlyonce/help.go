package main

import (
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
)

// help answers `onlyonce help [COMMAND]`.
func (a *app) help(args []string) int {
	if len(args) == 0 {
		usage(a.out, commands())
		return statusGood
	}
	if c, rest, ok := find(args); ok && len(rest) == 0 {
		c.writeHelp(a.out)
		return statusGood
	}
	if family := below(args[0]); len(family) > 0 && len(args) == 1 {
		usage(a.out, family)
		return statusGood
	}
	a.complain("onlyonce help: unknown command %q", strings.Join(args, " "))
	usage(a.stderr, commands())
	return statusEnvironment
}

// usage lists commands.
func usage(w io.Writer, list []command) {
	_, _ = fmt.Fprint(w, "Usage: onlyonce COMMAND [FLAGS]\n\nCommands:\n")
	width := len(slices.MaxFunc(list, func(a, b command) int { return len(a.name) - len(b.name) }).name)
	for _, c := range list {
		_, _ = fmt.Fprintf(w, "  %-*s  %s\n", width, c.name, c.summary)
	}
	_, _ = fmt.Fprint(w, `
`+"`onlyonce help COMMAND`"+` explains one. Every command takes the database from -postgres URL or from the
environment variable ONLYONCE_POSTGRES_URL.

Exit status: 0 good; 1 looked and not done (the answer was no, or things had changed meanwhile), or a
check of doctor failed; 2 usage or environment.
`)
}

// writeHelp writes the whole help of a command.
func (c command) writeHelp(w io.Writer) {
	_, _ = fmt.Fprintf(w, "Usage: onlyonce %s %s\n\n%s\n\nFlags:\n", c.name, c.args, strings.TrimSpace(c.help))
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	fs.SetOutput(w)
	c.setup(fs)
	fs.PrintDefaults()
}
