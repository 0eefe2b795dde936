package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// target is the first line of a rule of the Makefile.
var target = regexp.MustCompile(`^([a-z][a-z-]*):`)

// printHelp prints the targets of the Makefile, each with the comment above it that begins with ##.
func printHelp(w io.Writer) error {
	text, err := os.ReadFile("Makefile")
	if err != nil {
		return err
	}
	var comment []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if said, ok := strings.CutPrefix(line, "## "); ok {
			comment = append(comment, said)
			continue
		}
		if m := target.FindStringSubmatch(line); m != nil && len(comment) > 0 {
			_, _ = fmt.Fprintf(w, "%-16s%s\n", m[1], strings.Join(comment, "\n"+strings.Repeat(" ", 16)))
		}
		comment = nil
	}
	return nil
}
