package webhook_test

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

var updatePage = flag.Bool("update", false, "write the tables of docs/guide/webhook-bodies.md")

// The page says of each event whether its bodies name themselves, as the endpoint's tables do.
func TestPageOfBodies(t *testing.T) {
	t.Parallel()
	const file = "../docs/guide/webhook-bodies.md"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := string(page)
	for sender, table := range map[string]string{"github": githubTable(t), "shopify": shopifyTable(t)} {
		before, rest, found := strings.Cut(want, "<!-- "+sender+" -->\n")
		_, after, ended := strings.Cut(rest, "<!-- end -->")
		if !found || !ended {
			t.Fatalf("%s has no table of %s", file, sender)
		}
		want = before + "<!-- " + sender + " -->\n" + table + "<!-- end -->" + after
	}
	if want == string(page) {
		return
	}
	if !*updatePage {
		t.Fatalf("%s is not made of webhook/names: go test ./webhook -run TestPageOfBodies -update", file)
	}
	if err := os.WriteFile(file, []byte(want), 0o600); err != nil {
		t.Fatal(err)
	}
}

func readTable(t *testing.T, sender string, into any) {
	t.Helper()
	raw, err := os.ReadFile("names/" + sender + ".json")
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func githubTable(t *testing.T) string {
	t.Helper()
	names := map[string]map[string]string{}
	readTable(t, "github", &names)
	table := "\n| Event | Actions whose bodies name themselves, by which member | Others |\n|---|---|---|\n"
	for _, event := range slices.Sorted(maps.Keys(names)) {
		var named, others []string
		for _, action := range slices.Sorted(maps.Keys(names[event])) {
			if member := names[event][action]; member != "" {
				named = append(named, action+": "+member)
			} else {
				others = append(others, action)
			}
		}
		if names[event]["*"] == "" {
			others = append(others, "all others")
		}
		table += fmt.Sprintf("| %s | %s | %s |\n",
			event, cmp.Or(strings.Join(named, "; "), "none"), cmp.Or(strings.Join(others, ", "), "none"))
	}
	return strings.ReplaceAll(table, "*: ", "any other: ") + "\n"
}

func shopifyTable(t *testing.T) string {
	t.Helper()
	names := map[string]string{}
	readTable(t, "shopify", &names)
	table := "\n| Topic | Names itself, beside its topic, by |\n|---|---|\n"
	for _, topic := range slices.Sorted(maps.Keys(names)) {
		member := "it does not"
		if names[topic] != "" {
			member = names[topic]
		}
		table += fmt.Sprintf("| %s | %s |\n", topic, member)
	}
	return table + "\n"
}
