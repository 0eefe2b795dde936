package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	target    = regexp.MustCompile(`(?m)^([a-z][a-z-]*):`)
	makes     = regexp.MustCompile(`\bmake ([a-z][a-z-]+)`)
	clauses   = regexp.MustCompile(`[.;,:]\s`)
	inCI      = regexp.MustCompile(`\bCI\b`)
	fileNamed = regexp.MustCompile(`^\.?[\w-]+(/[\w.-]+)+\.(go|sql|md|yaml|json|py)$`)
)

// notOurs are files that the pages have the reader write, and those of specifications.
var notOurs = []string{
	"produce/main.go",
	"rfcs/rfc.agentic_checkout.md",
	"docs/specification/checkout-rest.md",
	"docs/specification/checkout-mcp.md",
}

// fileText is a file of the repository.
func fileText(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// makeTargets are those of the Makefile.
func makeTargets(t *testing.T) (all []string) {
	t.Helper()
	for _, m := range target.FindAllStringSubmatch(fileText(t, "Makefile"), -1) {
		all = append(all, m[1])
	}
	if len(all) < 30 {
		t.Fatalf("%d targets: %q", len(all), all)
	}
	return all
}

// A document that names a make target or a file of ours names one that exists.
func TestDocumentsNameTargetsAndFilesThatExist(t *testing.T) {
	t.Parallel()
	targets := makeTargets(t)
	files := tracked(t)
	named := 0
	for _, page := range tracked(t, "*.md") {
		for _, q := range quoted.FindAllStringSubmatch(codeBlock.ReplaceAllString(fileText(t, page), ""), -1) {
			for _, m := range makes.FindAllStringSubmatch(q[1], -1) {
				named++
				if !slices.Contains(targets, m[1]) {
					t.Errorf("%s: `%s`: the Makefile has no target %s", page, q[1], m[1])
				}
			}
			if !fileNamed.MatchString(q[1]) || slices.Contains(notOurs, q[1]) {
				continue
			}
			named++
			beside := filepath.ToSlash(filepath.Join(filepath.Dir(page), q[1]))
			if !slices.Contains(files, q[1]) && !slices.Contains(files, beside) {
				t.Errorf("%s: there is no file `%s`", page, q[1])
			}
		}
	}
	if named < 50 {
		t.Errorf("%d targets and files are named", named)
	}
}

// A clause that has CI and a make target says that CI plays it, or with "neither" or "not" that it
// does not.
func TestDocumentsSayWhatCIPlays(t *testing.T) {
	t.Parallel()
	targets := makeTargets(t)
	ci := fileText(t, ".ci/run") + fileText(t, ".ci/part")
	claims := 0
	for _, page := range tracked(t, "*.md") {
		text := strings.Join(strings.Fields(codeBlock.ReplaceAllString(fileText(t, page), "")), " ")
		for _, clause := range clauses.Split(text, -1) {
			if !inCI.MatchString(clause) {
				continue
			}
			denies := strings.Contains(clause, "neither") || strings.Contains(clause, " not ")
			for _, q := range quoted.FindAllStringSubmatch(clause, -1) {
				name := strings.TrimPrefix(q[1], "make ")
				if !slices.Contains(targets, name) {
					continue
				}
				claims++
				plays := regexp.MustCompile(`(?m)(make |^)` + name + `( |$|")`).MatchString(ci)
				if plays == denies {
					t.Errorf("%s: %q: CI plays %s: %v", page, clause, name, plays)
				}
			}
		}
	}
	if claims < 3 {
		t.Errorf("%d claims", claims)
	}
}

// rows counts the rows of the table that begins with a heading's row.
func rows(t *testing.T, page, head string) (n int) {
	t.Helper()
	_, table, found := strings.Cut(fileText(t, page), "\n"+head)
	if !found {
		t.Fatalf("%s has no table that begins with %q", page, head)
	}
	for _, line := range strings.Split(table, "\n")[2:] {
		if !strings.HasPrefix(line, "|") {
			break
		}
		n++
	}
	return n
}

// A number in words is the number of things.
func TestDocumentsCountRight(t *testing.T) {
	t.Parallel()
	words := []string{
		"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
		"eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
		"nineteen", "twenty",
	}
	senders := rows(t, "docs/guide/webhooks.md", "| Sender | Signs |") - 1 // HMAC is no sender
	faults := strings.Count(fileText(t, "docs/guide/diagrams.md"), "\n## ")
	sinks, err := filepath.Glob(root + "/outbox/*sink")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		page, before, after string
		is                  int
	}{
		{"README.md", "of Stripe, GitHub, PayPal and ", " others", senders - 3},
		{"docs/guide/README.md", "[What happens when](diagrams.md): ", " faults", faults},
		{"docs/guide/README.md", "[On call](on-call.md): a card with ", " words", rows(t, "docs/guide/on-call.md", "| Word |")},
		{"docs/guide/README.md", " words and ", " commands", rows(t, "docs/guide/on-call.md", "| Question |")},
		{"docs/guide/calls.md", "`onlyonce-relay` has all ", "", len(sinks)},
	} {
		text := strings.Join(strings.Fields(fileText(t, c.page)), " ")
		if want := c.before + words[c.is] + c.after; !strings.Contains(text, want) {
			t.Errorf("%s does not say %q: they are %d now", c.page, want, c.is)
		}
	}
	names := regexp.MustCompile("\n\\| (\\w[\\w ]+) \\|").FindAllStringSubmatch(fileText(t, "docs/guide/webhooks.md"), -1)
	list := fileText(t, "CHANGELOG.md")
	for _, m := range names[:senders+1] {
		if m[1] != "Sender" && !strings.Contains(list, m[1]) {
			t.Errorf("CHANGELOG.md does not name the sender %s", m[1])
		}
	}
}

// A version that a page gives of what the tests run on is the one that they run on.
func TestDocumentsGiveTheTestedVersions(t *testing.T) {
	t.Parallel()
	page := fileText(t, "docs/guide/servers.md")
	for _, c := range []struct{ file, version, says string }{
		{"test/devenv/moto.go", `motoVersion = "([\d.]+)"`, "moto "},
		{"queue/natsqueue/go.mod", `nats-server/v2 v(\d+\.\d+)`, "NATS "},
		{"test/devenv/kafka_jars.go", `defaultKafkaVersion = "(4\.\d+\.\d+)"`, "Apache Kafka "},
	} {
		m := regexp.MustCompile(c.version).FindStringSubmatch(fileText(t, c.file))
		if m == nil {
			t.Errorf("%s has no version", c.file)
		} else if !strings.Contains(page, c.says+m[1]) {
			t.Errorf("docs/guide/servers.md does not say %q, which the tests run on", c.says+m[1])
		}
	}
}
