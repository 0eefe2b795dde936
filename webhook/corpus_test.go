package webhook_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
)

// example is a payload of a real sender, from testdata/corpus.
type example struct {
	Event, Action string
	Names         string // the member that tells it from other changes; empty: none does
	Payload       json.RawMessage
}

// githubExamples are the payloads that GitHub's own project publishes.
func githubExamples(t testing.TB) (all []example) {
	t.Helper()
	names := map[string]map[string]string{}
	raw, err := os.ReadFile("testdata/corpus/github-names.json")
	if err == nil {
		err = json.Unmarshal(raw, &names)
	}
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open("testdata/corpus/github.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	open, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(open)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e example
		var payload struct{ Action string }
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		_ = json.Unmarshal(e.Payload, &payload) // an action may be of another type
		e.Action = payload.Action
		ofEvent, known := names[e.Event]
		if !known && e.Event != "ping" {
			t.Errorf("github-names.json lacks %s", e.Event)
		}
		var listed bool
		if e.Names, listed = ofEvent[e.Action]; !listed {
			e.Names = ofEvent["*"]
		}
		all = append(all, e)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// shopifyExamples are payloads of Shopify's topics.
func shopifyExamples(t testing.TB) (all []example) {
	t.Helper()
	topics := map[string]example{}
	raw, err := os.ReadFile("testdata/corpus/shopify.json")
	if err == nil {
		err = json.Unmarshal(raw, &topics)
	}
	if err != nil {
		t.Fatal(err)
	}
	for topic, e := range topics {
		e.Event = topic
		all = append(all, e)
	}
	return all
}

// member returns a member of an example's payload by its path, for example "pages.0.sha".
func (e *example) member(t testing.TB, path string) any {
	t.Helper()
	var at any
	if err := json.Unmarshal(e.Payload, &at); err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(path, ".") {
		switch in := at.(type) {
		case map[string]any:
			at = in[name]
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i >= len(in) {
				return nil
			}
			at = in[i]
		default:
			return nil
		}
	}
	return at
}

// The member that is said to name a change is in each example of it.
func TestCorpus(t *testing.T) {
	t.Parallel()
	github, shopify := githubExamples(t), shopifyExamples(t)
	if len(github) != 329 || len(shopify) < 30 {
		t.Fatalf("%d and %d examples", len(github), len(shopify))
	}
	none := map[string]bool{}
	for _, e := range append(github, shopify...) {
		switch value := e.member(t, e.Names).(type) {
		case nil, map[string]any, []any:
			if e.Names != "" {
				t.Errorf("%s %s: %s is %v", e.Event, e.Action, e.Names, value)
			}
			none[e.Event] = true
		}
	}
	for _, event := range []string{"membership", "member", "team_add", "watch", "repository_dispatch", "shop/redact", "app/uninstalled"} {
		if !none[event] {
			t.Errorf("bodies of %s name themselves", event)
		}
	}
}
