package webhook_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
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
	raw, err := os.ReadFile("names/github.json")
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
			t.Errorf("github.json lacks %s", e.Event)
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
	names := map[string]string{}
	payloads := map[string]json.RawMessage{}
	for file, into := range map[string]any{"names/shopify.json": &names, "testdata/corpus/shopify.json": &payloads} {
		raw, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(raw, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for topic, payload := range payloads {
		if _, listed := names[topic]; !listed {
			t.Errorf("shopify.json lacks %s", topic)
		}
		all = append(all, example{Event: topic, Names: names[topic], Payload: payload})
	}
	return all
}

// decoded returns an example's payload, with numbers as they are written.
func (e *example) decoded(t testing.TB) (payload any) {
	t.Helper()
	in := json.NewDecoder(bytes.NewReader(e.Payload))
	in.UseNumber()
	if err := in.Decode(&payload); err != nil {
		t.Fatal(err)
	}
	return payload
}

// replace replaces a member by its path, for example "pages.0.sha", and returns what it was. It
// returns nil if there is none, or by is nil and nothing is replaced.
func replace(in any, path string, by func(any) any) (was any) {
	name, rest, more := strings.Cut(path, ".")
	switch in := in.(type) {
	case map[string]any:
		was = in[name]
		if !more && was != nil && by != nil {
			in[name] = by(was)
		}
	case []any:
		if i, err := strconv.Atoi(name); err == nil && i < len(in) {
			was = in[i]
		}
	}
	if more {
		return replace(was, rest, by)
	}
	return was
}

// changes returns the bodies of n genuine changes of an example's kind: if its bodies name
// themselves, they differ in the member that does so, and otherwise they are equal.
func (e *example) changes(t testing.TB, n int) (all []string) {
	t.Helper()
	for i := range n {
		payload := e.decoded(t)
		replace(payload, e.Names, func(was any) any {
			if number, is := was.(json.Number); is {
				whole, err := number.Int64()
				if err != nil {
					t.Fatal(err)
				}
				return whole + int64(i)
			}
			text, _ := was.(string)
			if at, err := time.Parse(time.RFC3339, text); err == nil {
				return at.Add(time.Duration(i) * time.Second).Format(time.RFC3339)
			}
			return text + strings.Repeat("0", i)
		})
		body, err := json.Marshal(payload)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(body))
	}
	return all
}

// The member that is said to name a change is in each example of it.
func TestCorpus(t *testing.T) {
	t.Parallel()
	github := githubExamples(t)
	shopify := shopifyExamples(t)
	if len(github) != 329 || len(shopify) < 30 {
		t.Fatalf("%d and %d examples", len(github), len(shopify))
	}
	none := map[string]bool{}
	for _, e := range append(github, shopify...) {
		switch value := replace(e.decoded(t), e.Names, nil).(type) {
		case nil, map[string]any, []any:
			if e.Names != "" {
				t.Errorf("%s %s: %s is %v", e.Event, e.Action, e.Names, value)
			}
			none[e.Event] = true
		}
		bodies := slices.Compact(e.changes(t, 5))
		want := 1
		if e.Names != "" {
			want = 5
		}
		if len(bodies) != want {
			t.Errorf("%s %s: five changes have %d bodies", e.Event, e.Action, len(bodies))
		}
	}
	for _, event := range []string{"membership", "member", "team_add", "watch", "repository_dispatch", "shop/redact", "app/uninstalled"} {
		if !none[event] {
			t.Errorf("bodies of %s name themselves", event)
		}
	}
}
