package names_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/onlyonce/onlyonce/internal/names"
)

// leaseOf makes a name of each feature, of two names of users and a number. Those that it takes are
// in takes. begins is set if a statement looks for the names that begin with it.
var leaseOf = []struct {
	feature, takes string
	name           func(a, b string, n int) (name, begins string)
}{
	{"cursor", "abn", func(a, b string, n int) (string, string) { return names.Cursor(a, b, int32(n)).String(), "" }},
	{"lanes", "an", func(a, _ string, n int) (string, string) { return numbered(names.Lanes(a), n) }},
	{"relays", "an", func(a, _ string, n int) (string, string) { return numbered(names.Relays(a), n) }},
	{"partitions", "abn", func(a, b string, n int) (string, string) { return numbered(names.Partitions(a, b), n) }},
	{"readers", "abn", func(a, b string, n int) (string, string) { return numbered(names.Readers(a, b), n) }},
	{"receiver", "a", func(a, _ string, _ int) (string, string) { return names.Receiver(a).String(), "" }},
	{"backfill", "a", func(a, _ string, _ int) (string, string) { return names.Backfill(a).String(), "" }},
	{"rotator", "a", func(a, _ string, _ int) (string, string) { return names.Rotator(a).String(), "" }},
	{"builder", "a", func(a, _ string, _ int) (string, string) { return names.Builder(a).String(), "" }},
	{"request", "a", func(a, _ string, _ int) (string, string) { return names.Requests + a, "" }},
	{"observer", "", func(string, string, int) (string, string) { return names.Observer().String(), "" }},
}

func numbered(l names.Leases, n int) (name, begins string) {
	return l.Lease(n).String(), l.Prefix()
}

// hostile are names that look like a feature's word, a part of a name, a pattern or an escape.
var hostile = []string{
	"events", "events/", "events/g", "relay", "relays", "relays/mail", "readers", "member",
	"cursor", "queue", "webhook", "observe", "http", "ring", "", "/", "//", "a/b", "a%2Fb", "%",
	"_", "%25", "a", "a/0", "0", "1", "1/1", "..", ".", " ", "\x00", "\xff", "ä", "日本", "'",
	`\`, "outbox", "stripe",
}

// named is one name, and what it was made of.
type named struct {
	feature, a, b string
	n             int
	name, begins  string
}

func nameOf(i int, a, b string, n int) named {
	f := leaseOf[i]
	made := named{feature: f.feature}
	made.name, made.begins = f.name(a, b, n)
	if strings.Contains(f.takes, "a") {
		made.a = a
	}
	if strings.Contains(f.takes, "b") {
		made.b = b
	}
	if strings.Contains(f.takes, "n") {
		made.n = n
	}
	return made
}

// compare fails if two things have one name, or if a look for the names of one finds the other's.
func compare(t interface{ Errorf(string, ...any) }, x, y named) {
	ofOne := x.feature == y.feature && x.a == y.a && x.b == y.b
	if same := ofOne && x.n == y.n; same != (x.name == y.name) {
		t.Errorf("one name: %t, for %+v and %+v", x.name == y.name, x, y)
	}
	if x.begins != "" && ofOne != strings.HasPrefix(y.name, x.begins) {
		t.Errorf("a look for the names of %+v finds that of %+v: %t", x, y, !ofOne)
	}
}

// S5: whatever users call their sinks, groups, scopes and topics, no two features share a name, and
// a look for one feature's names finds no other's.
func TestS5NoNameBeginsWithAnothers(t *testing.T) {
	t.Parallel()
	var all []named
	for i := range leaseOf {
		for _, a := range hostile {
			for _, b := range []string{"t", "a/b"} {
				all = append(all, nameOf(i, a, b, 0), nameOf(i, a, b, 10))
			}
		}
	}
	for _, x := range all {
		for _, y := range all {
			compare(t, x, y)
			if t.Failed() {
				return
			}
		}
	}
}

func TestS5NoDrawnNameBeginsWithAnothers(t *testing.T) {
	t.Parallel()
	user := rapid.OneOf(rapid.SampledFrom(hostile), rapid.StringN(0, 12, 40), rapid.StringOf(rapid.SampledFrom([]rune("aelrstvy/%_012"))))
	feature := rapid.IntRange(0, len(leaseOf)-1)
	rapid.Check(t, func(t *rapid.T) {
		x := nameOf(feature.Draw(t, "feature"), user.Draw(t, "a"), user.Draw(t, "b"), rapid.IntRange(0, 20).Draw(t, "n"))
		y := nameOf(feature.Draw(t, "feature2"), user.Draw(t, "a2"), user.Draw(t, "b2"), rapid.IntRange(0, 20).Draw(t, "n2"))
		compare(t, x, y)
	})
}

// The word of a feature is no beginning of another feature's, either way.
func TestS5NoWordBeginsWithAnother(t *testing.T) {
	t.Parallel()
	all := words()
	for _, x := range all {
		for _, y := range all {
			if x != y && strings.HasPrefix(y, x) {
				t.Errorf("%q begins with %q", y, x)
			}
		}
	}
	for _, x := range []string{names.QueueScopes, names.WebhookScopes, names.QueueStreams, names.WebhookStreams} {
		for _, y := range []string{names.QueueScopes, names.WebhookScopes, names.QueueStreams, names.WebhookStreams} {
			if x != y && strings.HasPrefix(y, x) {
				t.Errorf("%q begins with %q", y, x)
			}
		}
	}
}

// words are the words of the features, as leases have them.
func words() []string {
	var all []string
	for i := range leaseOf {
		name := nameOf(i, "x", "x", 0).name
		if at := strings.IndexByte(name, '/'); at >= 0 {
			name = name[:at+1]
		}
		all = append(all, name)
	}
	return all
}

// comments are those of Go that fill their lines.
var comments = regexp.MustCompile(`(?m)^\s*//.*$`)

// sources are the module's files that run against a user's database: the statements among them are
// what this test reads.
func sources(t *testing.T, ext ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path = filepath.ToSlash(path)
		if d.IsDir() {
			if slices.Contains([]string{"../../test", "../../examples", "../../.git", "../../internal/names", "../../internal/rig"}, path) {
				return filepath.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(path, "_test.go") || !slices.Contains(ext, filepath.Ext(path)) {
			return nil
		}
		text, err := os.ReadFile(path)
		all[strings.TrimPrefix(path, "../../")] = comments.ReplaceAllString(string(text), "")
		return err
	})
	if err != nil || len(all) == 0 {
		t.Fatalf("%d files, %v", len(all), err)
	}
	return all
}

// Names are made in this package, and in the statements of the migrations and roles, which cannot
// call it. Those have the same words.
func TestS5NamesAreMadeHere(t *testing.T) {
	t.Parallel()
	known := words()
	known = append(known, names.QueueScopes, names.WebhookScopes, names.QueueStreams, names.WebhookStreams)
	inSQL := map[string][]string{ // how often each file may have each word
		"onlyoncetest/trace.go":          {"webhook."}, // a package
		"migrations/0001/6_webhooks.sql": {"webhook/", "webhook/"},
		"migrations/0001/7_http.sql":     {"http/"},
		"docs/roles.sql": {
			"relay/", "relays/", "http/", "cursor/", "webhook/", "queue/", "events/", "readers/",
			"ring/", "filters/", "observe",
		},
	}
	quoted := regexp.MustCompile("['\"`]([a-z]+[/.]|observe)(%?['\"`])")
	for path, text := range sources(t, ".go", ".sql") {
		var found []string
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			if slices.Contains(known, m[1]) {
				found = append(found, m[1])
			}
		}
		if !slices.Equal(found, inSQL[path]) {
			t.Errorf("%s has %q, want %q: make names by package names", path, found, inSQL[path])
		}
	}
	// Each feature's leases are some role's.
	for _, word := range words() {
		if !slices.Contains(inSQL["docs/roles.sql"], word) {
			t.Errorf("docs/roles.sql does not say who may write leases %s", word)
		}
	}
}

// A pattern that tells leases apart matches one feature's: no LIKE or starts_with has more than a
// word of ours, or a parameter that this package has made.
func TestS5PatternsOfLeasesHaveOneWord(t *testing.T) {
	t.Parallel()
	pattern := regexp.MustCompile(`(?:starts_with\((?:\w+\.)?name, ([^)]+)\)|\b(?:\w+\.)?name (?:not )?like ('[^']*'))`)
	n := 0
	for path, text := range sources(t, ".go", ".sql") {
		for _, m := range pattern.FindAllStringSubmatch(text, -1) {
			n++
			with := m[1] + m[2]
			word := strings.TrimSuffix(strings.Trim(with, "'"), "%")
			if !slices.Contains(words(), word) && !slices.Contains([]string{"$1", "$2", "t.members"}, with) {
				t.Errorf("%s: a look for names that begin with %s", path, with)
			}
		}
	}
	if n < 10 {
		t.Errorf("%d patterns", n)
	}
}

// Each class of advisory locks is of one thing, and each lock of two numbers has one of ours.
func TestS5LocksAreOfOneThing(t *testing.T) {
	t.Parallel()
	of := map[string]string{
		names.PlaceLocks:     "hashtext",
		names.PurgeLocks:     "1",
		names.StripeLocks:    "s",
		names.RequestLocks:   "(",
		names.AppendLocks:    "key",
		names.MigrationLocks: "1",
	}
	if len(of) != 6 {
		t.Fatal("two classes have one number")
	}
	lock := regexp.MustCompile(`pg_(?:try_)?advisory_(?:xact_)?lock(?:_shared)?\((\d+), (\w+|\()`)
	seen := map[string]bool{}
	text := strings.Join(slices.Collect(func(yield func(string) bool) {
		for _, s := range sources(t, ".go", ".sql") {
			s = strings.NewReplacer("` + names.PlaceLocks + `",
				names.PlaceLocks,
				"` + names.PurgeLocks + `",
				names.PurgeLocks,
				"` + names.MigrationLocks + `",
				names.MigrationLocks).Replace(s)
			if !yield(s) {
				return
			}
		}
	}), "\n")
	for _, m := range lock.FindAllStringSubmatch(text, -1) {
		seen[m[1]] = true
		if of[m[1]] != m[2] {
			t.Errorf("a lock of class %s is of %s, and that class is of %q", m[1], m[2], of[m[1]])
		}
	}
	if len(seen) != len(of) {
		t.Errorf("%d of %d classes are in use", len(seen), len(of))
	}
}

// What a consumer commits names its scope, and is told from another program's.
func TestF15MarkNamesTheScope(t *testing.T) {
	t.Parallel()
	for _, scope := range append(slices.Clone(hostile), "a b", "onlyonce/1 x 3") {
		if got, ours := names.Marked(names.Mark(scope, 17)); got != scope || !ours {
			t.Errorf("%q is read as %q, %t", scope, got, ours)
		}
	}
	for metadata, want := range map[string]bool{"": false, "stock 17": false, "onlyonce/10 stock 17": false, "onlyonce/1 %zz 17": true} {
		if scope, ours := names.Marked(metadata); scope != "" || ours != want {
			t.Errorf("%q: %q, %t", metadata, scope, ours)
		}
	}
}
