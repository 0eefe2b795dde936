package webhook

import (
	"embed"
	"encoding/json"
	"strconv"
	"strings"
	"sync"

	"github.com/onlyonce/onlyonce/webhook/internal/received"
)

//go:embed names
var namesFiles embed.FS

// githubNames has, for each of GitHub's events and actions, the member that names a change; "" or
// none: its bodies do not name themselves. "*" is any other action. shopifyNames has it for each of
// Shopify's topics. docs/guide/webhook-bodies.md is made of both.
var (
	githubNames  = sync.OnceValue(func() map[string]map[string]string { return readNames[map[string]string]("github") })
	shopifyNames = sync.OnceValue(func() map[string]string { return readNames[string]("shopify") })
)

// readNames reads a file of this program's own, so that an error is one of the program.
func readNames[T any](sender string) (names map[string]T) {
	raw, err := namesFiles.ReadFile("names/" + sender + ".json")
	if err == nil {
		err = json.Unmarshal(raw, &names)
	}
	if err != nil {
		panic(err)
	}
	return names
}

// namesGitHub is GitHub's Scheme.Names. The event's name is a header that is not signed. Under
// another name a body of GitHub's may seem to name itself, or not to: the genuine event has the
// right one, and is kept whatever came before under a wrong one.
func namesGitHub(event string, body []byte) (by string, named bool) {
	actions := githubNames()[event]
	if len(actions) == 0 {
		return "", false
	}
	member, listed := actions[received.String(received.Members(body, "action")["action"])]
	if !listed {
		member = actions["*"]
	}
	return "", hasMember(body, member)
}

// hasMember reports whether a JSON document has a member that is a text or a number, by its path,
// for example "pages.0.sha".
func hasMember(document json.RawMessage, path string) bool {
	if path == "" {
		return false
	}
	for name := range strings.SplitSeq(path, ".") {
		if i, err := strconv.Atoi(name); err == nil {
			var list []json.RawMessage
			if json.Unmarshal(document, &list) != nil || i >= len(list) {
				return false
			}
			document = list[i]
			continue
		}
		document = received.Members(document, name)[name]
	}
	if received.String(document) != "" {
		return true
	}
	var number json.Number
	return len(document) > 0 && document[0] != '"' && json.Unmarshal(document, &number) == nil && number != ""
}
