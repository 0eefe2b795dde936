package main

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/rig/wire"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/results"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// played plays the histories with the given names on the tests' server, and fails if one breached.
func played(t *testing.T, only ...string) {
	t.Helper()
	playedOn(t, pgtest.ServerURL(t), only...)
}

// playedOn is played on the server with the given address, or on servers of its own if there is
// none.
func playedOn(t *testing.T, server string, only ...string) {
	t.Helper()
	var out bytes.Buffer
	o := &options{
		seed:     "test",
		only:     only,
		workers:  4,
		bound:    time.Second,
		patience: pgtest.Patience(40 * time.Second),
		command:  "go run ./test/adversary -only ",
		out:      &out,
	}
	n, breached, err := adversary(t.Context(), server, o)
	t.Log(out.String())
	switch {
	case err != nil:
		t.Fatal(err)
	case breached:
		t.Errorf("%d histories breached, %d never struck", n.breaches, len(n.unstruck))
	case n.struck == 0:
		t.Error("nothing was played")
	}
}

// T4: the server gets a batch after its owner has done it again, gone on and pruned. The batch does
// not commit a second time, although its transaction has a snapshot from before.
func TestT4LateDelivery(t *testing.T) {
	played(t, "consumer/repeatable-read/positions/messages/late/fence.bind.*",
		"consumer/repeatable-read/events/batch/late/fence.bind.[2-4]")
}

// T7: if a server falls silent at the fence and the claim, it holds the partition for no longer
// than the bounds.
func TestT7SilenceBeforeTheHandler(t *testing.T) {
	played(t, "consumer/read-committed/key/batch/silent/claim_consumer.*")
}

// T7: if a server falls silent while an operator's transaction holds locks, they are not held for
// longer than its bound.
func TestT7SilenceDuringADecision(t *testing.T) {
	played(t, "redrive/command/silent/update-parked*.sync.1")
}

// S1: if a server falls silent while a process starts, the process gives up and asks again.
func TestS1SilentServerAtTheStart(t *testing.T) {
	for _, only := range []string{"relay/calls/silent/select-current_user*.sync.1", "receiver/inbox/silent/select-current_user*.sync.1",
		"consumer/read-committed/events/messages/silent/from-pg_namespace*.sync.2"} {
		t.Run(strings.Split(only, "/")[0], func(t *testing.T) { played(t, only) })
	}
}

// E3: if a server falls silent while events are read, it holds the partition for no longer than the
// bound.
func TestE3SilentServerAtTheFetch(t *testing.T) {
	played(t, "consumer/read-committed/events/messages/late/lock-table-onlyonce*.bind.[12]")
}

// C1: a slot makes its transaction again, because its COMMIT was not answered.
func TestC1CommitIsNotAnswered(t *testing.T) {
	played(t, "consumer/repeatable-read/positions/slots/after/commit.sync.*", "consumer/read-committed/key/slots/silent/commit.sync.[1-3]")
}

// N1: whichever message of a process goes wrong while it asks for the shard of a tenant, another
// program that sends the tenant to another database does not make it live in both.
func TestN1RegistrationIsCutOff(t *testing.T) {
	played(t, "places/request/*/update-places*.sync.[1-3]", "places/request/late/update-places*.bind.[1-3]")
}

// K4, O8: whichever message of a rotator goes wrong, no key is new twice and no call is lost, and
// writers go on. A rotator waits for all transactions of its server, so it has one of its own: on
// the tests' server it waits for other packages' tests too.
func TestO8RotatorThatIsCutOff(t *testing.T) {
	playedOn(t, "",
		"rotation/standard-keys/repeatable-read/before/epoch-[0-2]-commit.query.1",
		"rotation/outbox/repeatable-read/*/epoch-[01]-commit.query.1")
}

func TestNames(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"", "a/b", true},
		{"a", "a/b/c", true},
		{"a/*/c", "a/b/c", true},
		{"a/*/d", "a/b/c", false},
		{"a/b/c/d", "a/b/c", false},
		{"x,a/b", "a/b/c", true},
		{"a/b/late/fence.bind.*", "a/b/late/fence.bind.12", true},
	} {
		var patterns []string
		if c.pattern != "" {
			patterns = strings.Split(c.pattern, ",")
		}
		if got := selects(patterns, c.name); got != c.want {
			t.Errorf("%q selects %q: %v", c.pattern, c.name, got)
		}
	}
}

// Statements have short names. Statements that only look alike have different ones.
func TestLabels(t *testing.T) {
	for sql, want := range map[string]string{
		"begin":                         "begin",
		"select onlyonce.fence($1, $2)": "fence",
		"":                              "nothing",
		"select lease, epoch from onlyonce.http_claim($1)": "http_claim",
	} {
		if got := wire.StatementName(sql); got != want {
			t.Errorf("%q is called %q, want %q", sql, got, want)
		}
	}
	a := wire.StatementName("update onlyonce.cursors set released_at = now()")
	b := wire.StatementName("update onlyonce.cursors set released_at = null")
	if a == b || !strings.HasPrefix(a, "update-cursors#") {
		t.Errorf("%q and %q", a, b)
	}
}

func TestEachHistoryIsInOnePart(t *testing.T) {
	for _, name := range []string{"", "relay/calls/silent/a.sync.1", "relay/calls/silent/a.sync.2", "consumer/b"} {
		for _, n := range []int{1, 2, 20} {
			in := 0
			for k := 1; k <= n; k++ {
				if inPart(&results.Part{K: k, N: n}, name) {
					in++
				}
			}
			if in != 1 {
				t.Errorf("%q is in %d of %d parts", name, in, n)
			}
		}
	}
}

// A history is left out only if it is equal to another one that is played.
func TestSpare(t *testing.T) {
	sent := []point{
		{conn: 1, kind: wire.Startup},
		{conn: 1, kind: wire.Parse}, {conn: 2, kind: wire.Bind}, {conn: 1, kind: wire.Sync}, // prepares; another connection between
		{conn: 1, kind: wire.Bind}, {conn: 1, kind: wire.Bind, lasts: true}, {conn: 1, kind: wire.Bind}, {conn: 1, kind: wire.Sync},
		{conn: 2, kind: wire.Parse}, {conn: 2, kind: wire.Sync}, // the end of a round trip that does not only prepare
		{conn: 1, kind: wire.Query},
	}
	spare(sent)
	var got []string
	for _, p := range sent {
		got = append(got, strings.Join(slices.Sorted(maps.Keys(p.equal)), " "))
	}
	want := []string{"", "late", "", "before late", "", "before", "", "", "before", "before", ""}
	if !slices.Equal(got, want) {
		t.Errorf("spared: %q, want %q", got, want)
	}
}

func TestLasting(t *testing.T) {
	for sql, want := range map[string]bool{
		"commit":                                 true,
		"COMMIT PREPARED 'x'":                    true,
		"select setval('onlyonce.x_version', 3)": true,
		"select onlyonce.commit_stream_offset()": false,
		"insert into x values (1)":               false,
		"begin":                                  false,
	} {
		if got := lasting.MatchString(sql); got != want {
			t.Errorf("%q lasts: %v", sql, got)
		}
	}
}
