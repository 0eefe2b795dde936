package main

import (
	"slices"
	"strings"
)

// mostSuggested is how many commands are suggested for one that does not exist.
const mostSuggested = 3

// otherWords are what people of other tools may type.
var otherWords = map[string]string{
	"dlq":         "parked list",
	"dead":        "parked list",
	"deadletter":  "parked list",
	"dead-letter": "parked list",
	"failed":      "parked list",
	"parked":      "parked list",
	"retry":       "parked redrive",
	"requeue":     "parked redrive",
	"skip":        "parked discard",
	"drop":        "parked discard",
	"delete":      "parked discard",
	"health":      "doctor",
	"check":       "doctor",
	"verify":      "doctor",
	"lag":         "status",
	"info":        "status",
	"ps":          "status",
	"halts":       "status",
	"offsets":     "cursor show",
	"positions":   "cursor show",
	"reset":       "cursor adopt",
	"seek":        "cursor adopt",
	"rewind":      "replay",
	"stop":        "cursor pause",
	"find":        "explain",
	"trace":       "explain",
	"schema":      "migrate",
	"upgrade":     "migrate",
	"purge":       "inbox horizon",
}

// suggestions returns the commands that may be meant by words.
func suggestions(words []string) []string {
	words = strings.FieldsFunc(strings.ToLower(strings.Join(words, " ")), func(r rune) bool {
		return strings.ContainsRune(" -_:./", r)
	})
	typed := strings.Join(words, " ")
	var names []string
	for _, c := range commands() {
		names = append(names, c.name)
	}
	pick := func(is func(name string) bool) (near []string) {
		for _, name := range names {
			if len(near) < mostSuggested && is(name) {
				near = append(near, name)
			}
		}
		return near
	}
	hasWord := func(word string) func(name string) bool {
		return func(name string) bool {
			return slices.ContainsFunc(strings.Fields(name), func(of string) bool {
				return distance(word, of) <= len(word)/4
			})
		}
	}
	// The name with other marks between its words, or nearly the name.
	if near := pick(func(name string) bool { return distance(typed, name) <= max(1, len(typed)/5) }); len(near) > 0 {
		return near
	}
	for _, word := range words {
		if name, ok := otherWords[word]; ok {
			return []string{name}
		}
	}
	// Nearly one word of the name. The last one says what is to be done.
	for _, word := range slices.Backward(words) {
		if near := pick(hasWord(word)); len(near) > 0 {
			return near
		}
	}
	return nil
}

// distance is how many characters have to be changed, added, removed or swapped with the next one
// to make b of a.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			switch {
			case i == 0 || j == 0:
				rows[i][j] = i + j
			case a[i-1] == b[j-1]:
				rows[i][j] = rows[i-1][j-1]
			default:
				rows[i][j] = 1 + min(rows[i-1][j-1], rows[i-1][j], rows[i][j-1])
			}
			exchanged := i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1]
			if exchanged {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
