package onlyoncetest

import (
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/internal/rig/wire"
)

// Each point has one fault before any has a second one, and the program's own points come first.
func TestEachPointOnceBeforeAnyTwice(t *testing.T) {
	t.Parallel()
	points := []point{
		{name: "select-upkeep#1.bind.1", kind: wire.Bind}, {name: "select-upkeep#1.sync.1", kind: wire.Sync},
		{name: "fence.bind.1", kind: wire.Bind}, {name: "fence.sync.1", kind: wire.Sync},
		{name: "handler.1"},
		{name: "insert-orders#2.bind.1", kind: wire.Bind, users: true}, {name: "insert-orders#2.sync.1", kind: wire.Sync, users: true},
		{name: "insert-orders#2.bind.2", kind: wire.Bind, users: true}, {name: "insert-orders#2.sync.2", kind: wire.Sync, users: true},
		{name: "insert-lines#3.bind.1", kind: wire.Bind, users: true},
		{name: "commit.query.1", kind: wire.Query}, {name: "commit.query.2", kind: wire.Query},
		{name: "request.1"}, {name: "request.2"},
	}
	all := singles(points, able{log: true, copies: true, single: true, failover: true})
	var got []string
	for _, h := range all[:14] {
		got = append(got, h.String())
	}
	want := []string{"single", "copies", "moved", "failover:commit.query.1",
		"40001:handler.1", "after:request.1", "after:request.2",
		"after:insert-orders#2.sync.1", "before:insert-lines#3.bind.1", "after:insert-orders#2.sync.2",
		"after:fence.sync.1", "after:commit.query.1", "after:commit.query.2", "after:select-upkeep#1.sync.1"}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if !slices.ContainsFunc(all, func(h history) bool { return h.String() == "before:commit.query.2,reset" }) {
		t.Errorf("no reset: %v", all)
	}
	seen := map[string]bool{}
	for _, h := range all {
		if seen[h.String()] {
			t.Errorf("%s comes twice", h)
		}
		seen[h.String()] = true
	}
}

// A test that passes says what it has played.
func TestReportNamesItsShare(t *testing.T) {
	t.Parallel()
	r := &Report{Singles: 2000, Left: 1980, Clean: "3 messages, 1 parked as conflict"}
	got, want := r.short(), "without a fault 3 messages, 1 parked as conflict; 20 of 2000 single faults "+
		"played (1 %); -onlyonce.budget=0 plays all"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
	r.Left = 0
	got, want = r.short(), "without a fault 3 messages, 1 parked as conflict; 2000 of 2000 single faults played (100 %)"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
