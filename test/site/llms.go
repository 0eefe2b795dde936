package main

import (
	"bytes"
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// programs are whole programs, one a kind of work. They are packages of this module, so they
// compile.
//
//go:embed programs
var programs embed.FS

var kinds = []string{"consumer", "endpoint", "receiver", "api"}

// notInLLMs are packages that a program of users does not need.
var notInLLMs = []string{"ops", "ops-console", "shard", "consumer-consumertest", "queue-queuetest"}

// llms is llms.txt: what a program needs that writes programs with onlyonce. The whole guide is in
// the other file.
func (s *site) llms() ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# onlyonce\n\n> %s\n\n", s.pages[0].Summary)
	b.WriteString(`The whole guide on one page: llms-full.txt, beside this file. Below: what to know, four whole
programs, every exported name of the packages with its signature, and the pages.

## What to know

- ` + "`onlyonce migrate`" + ` makes the schema, once a database. Programs need a *pgxpool.Pool and, for Kafka,
  topics that exist.
- A handler writes through the tx that it gets, and does nothing else that lasts. A call to another
  service is outbox.Enqueue(ctx, tx, outbox.Call{...}); a relay sends it after the commit.
- tx.Queue(sql, args...) sends a statement together with others; tx.Exec waits for its answer.
- A message needs an id that is the same on each copy: consumer.Config.Key. The same id with another
  payload is set aside and never skipped.
- An error is tried again; consumer.Permanent(err) sets the message aside at once. Return errors of
  statements; do not swallow them.
- Each Run(ctx) works until ctx ends, finishes what is under way, and returns nil. Any other error
  ends the process.
- The zero value of a Config's field is its documented default. Faults of a Config are all in the
  error of New.

`)
	for _, kind := range kinds {
		text, err := programs.ReadFile("programs/" + kind + "/main.go")
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "## Program: %s\n\n```go\n%s```\n\n", kind, text)
	}
	names, err := surfaces(s.root)
	if err != nil {
		return nil, err
	}
	b.WriteString("## Signatures\n\nA line `type T.F X` is the field F of T; `method (T) M func(...)` its method.\n\n")
	for _, name := range names {
		if slices.Contains(notInLLMs, name) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(s.root, "test/api", name+".txt"))
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "### %s/%s\n\n```text\n%s```\n\n", module, strings.ReplaceAll(name, "-", "/"), text)
	}
	b.WriteString("## Pages\n\n")
	for _, p := range s.pages {
		if p.Path != rulesByName && p.html == "" {
			fmt.Fprintf(&b, "- [%s](%s%s): %s\n", p.Title, repository, p.Path, shortened(p.Summary))
		}
	}
	return b.Bytes(), nil
}

// shortened ends a summary after the sentence that passes 100 characters.
func shortened(summary string) string {
	for i := range summary {
		if i > 100 && strings.HasSuffix(summary[:i], ". ") {
			return summary[:i-1]
		}
	}
	return strings.TrimSuffix(summary, ":")
}

// whole is llms-full.txt: README, the guide and the references that it leads to, as they are.
func (s *site) whole() []byte {
	var b bytes.Buffer
	for _, p := range s.pages {
		guide := strings.HasPrefix(p.Path, "docs/guide/") || strings.HasPrefix(p.Path, "docs/operations/")
		if guide ||
			slices.Contains(
				[]string{"README.md", "docs/http.md", "docs/sql.md", "docs/guarantees.md", "docs/glossary.md", "docs/metrics.md"},
				p.Path,
			) {
			fmt.Fprintf(&b, "<!-- %s -->\n\n%s\n", p.Path, bytes.TrimSpace(p.source))
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}
