package metrics

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of docs/metrics.md")

const page = "../../docs/metrics.md"

var sources = []string{FromConsumer, FromRelay, FromLayer, FromEndpoint, FromQueue, FromProcess, FromDatabase}

// TestDocsHaveThisTable compares docs/metrics.md with the table; -update writes it.
func TestDocsHaveThisTable(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for _, source := range sources {
		begin := "<!-- " + source + " -->\n"
		before, rest, ok := strings.Cut(want, begin)
		_, after, ok2 := strings.Cut(rest, "<!-- end -->\n")
		if !ok || !ok2 {
			t.Fatalf("%s has no table between %q and <!-- end -->", page, begin)
		}
		want = before + begin + "\n" + Markdown(source) + "\n<!-- end -->\n" + after
	}
	if want == string(text) {
		return
	}
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s differs from the table of this package: run go test ./internal/metrics -update", page)
}

func TestNamesAreWellFormedAndUnique(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile(`^onlyonce(\.[a-z]+)+$`)
	label := regexp.MustCompile(`^[a-z]+$`)
	seen := map[string]bool{}
	for _, m := range All() {
		if !name.MatchString(m.Name) {
			t.Errorf("%s: a name is onlyonce and words of small letters, separated by dots", m.Name)
		}
		if seen[m.Prometheus()] {
			t.Errorf("%s is in the table twice", m.Prometheus())
		}
		seen[m.Prometheus()] = true
		if !slices.Contains(sources, m.From) {
			t.Errorf("%s: %q is no source", m.Name, m.From)
		}
		if m.Unit != "s" && m.Unit != "By" && !regexp.MustCompile(`^\{[a-z]+\}$`).MatchString(m.Unit) {
			t.Errorf("%s: the unit %q is neither s, By nor what is counted, in braces", m.Name, m.Unit)
		}
		if m.Kind == Histogram && m.Unit != "s" {
			t.Errorf("%s: the buckets are in seconds", m.Name)
		}
		for _, a := range m.Attributes {
			if !label.MatchString(a) {
				t.Errorf("%s: attribute %q", m.Name, a)
			}
			if slices.Contains([]string{"id", "key", "tenant", "principal"}, a) {
				t.Errorf("%s: the attribute %s has as many values as there are requests", m.Name, a)
			}
		}
		for _, text := range []string{m.Help, m.Bad, m.Do} {
			if !strings.HasSuffix(text, ".") || strings.Contains(text, "|") {
				t.Errorf("%s: not a sentence for a table: %q", m.Name, text)
			}
		}
	}
}

func TestByPrometheus(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]*Metric{
		"onlyonce_consumer_messages_total":       ConsumerMessages,
		"onlyonce_consumer_delay_seconds_bucket": ConsumerDelay,
		"onlyonce_segments_size_bytes":           SegmentsSize,
		"onlyonce_parked":                        Parked,
		"onlyonce_parked_count":                  nil,
		"onlyonce_consumer_delay":                nil,
	} {
		if got := ByPrometheus(name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
