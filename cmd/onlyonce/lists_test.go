package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/ops"
)

func TestCursorShow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if r := f.run("cursor", "show").want(t, statusGood); !strings.Contains(r.out, "no cursor") {
		t.Errorf("without cursors: %q, %q", r.out, r.err)
	}
	f.populate()
	r := f.run("cursor", "show").want(t, statusGood, "SCOPE",
		"0 earliest", "5 committed", "00000000-0000-4000-8000-00000000000a", "2 at 17").lines(
		t,
		0,
	)
	t.Log("\n" + r.out)
	r = f.run("cursor", "show", "-json").want(t, statusGood).lines(t, 0)
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines:\n%s", len(lines), r.out)
	}
	for _, l := range lines {
		if got := fields(t, []byte(l)); got != cursorFields {
			t.Errorf("fields: %s", got)
		}
	}
	for _, c := range []struct {
		args []string
		rows int
	}{
		{[]string{"-scope", "stock"}, 2},
		{[]string{"-partition", "1"}, 1},
		{[]string{"-topic", "orders", "-partition", "0"}, 1},
		{[]string{"-scope", "stock", "-topic", "orders", "-partition", "1"}, 1},
		{[]string{"-topic", "o"}, 0},
		{[]string{"-scope", "s' or true --"}, 0},
	} {
		r := f.run(append([]string{"cursor", "show", "-json"}, c.args...)...).want(t, statusGood)
		if n := strings.Count(r.out, "\n"); n != c.rows {
			t.Errorf("%q: %d rows, want %d", c.args, n, c.rows)
		}
	}
}

func TestParkedList(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run("parked", "list").want(t, statusGood, "Nothing is parked and not settled\n").lines(t, 0)
	f.run("parked", "list", "-scope", "stock").want(t, statusGood, "No matching parked rows\n").lines(t, 0)
	f.populate()
	f.columns = 80
	r := f.run("parked", "list").want(
		t,
		statusGood,
		"orders/0@12",
		"payment…charge",
		"first line",
		"\n2 messages, waiting, exhausted: scope stock\n",
		"\n  onlyonce parked redrive -kind message -scope stock -parked-for exhausted \\\n      -reason WHY\n",
	).lines(t, 0).fits(t, 80)
	if !strings.HasSuffix(r.out, "\n3 waiting, 1 reconcile; 1 settled not shown (-all)\n") {
		t.Errorf("last line:\n%s", r.out)
	}
	t.Log("\n" + r.out)
	for _, not := range []string{"second line", "\x1b", "secret body", strings.Repeat("x", 60), "discarded"} {
		if strings.Contains(r.out, not) {
			t.Errorf("%q is shown", not)
		}
	}
	r = f.run("parked", "list", "-all", "-json").want(t, statusGood).lines(t, 0)
	var ids []int64
	for line := range strings.Lines(r.out) {
		if got := fields(
			t,
			[]byte(line),
		); got != "id kind state reason scope tenant topic partition offset sink name key order_key head "+
			"parked_at attempts may_be_applied next_attempt_at redrives redriven_at settled_at error" {
			t.Errorf("fields: %s", got)
		}
		var row ops.ParkedRow
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatal(err)
		}
		if len([]rune(row.Error)) > 1000 || strings.Contains(row.Error, "\n") {
			t.Errorf("error of %d: %q", row.ID, row.Error)
		}
		ids = append(ids, row.ID)
	}
	if len(ids) != 5 || ids[0] < ids[4] {
		t.Errorf("not all, or not newest first: %v", ids)
	}
	if strings.Contains(r.out, "secret body") || strings.Contains(r.out, "second line") {
		t.Error("JSON shows more than it should")
	}
	for _, c := range []struct {
		args []string
		rows int
		more bool
	}{
		{nil, 4, false},
		{[]string{"-all"}, 5, false},
		{[]string{"-state", "discarded"}, 1, false},
		{[]string{"-parked-for", "window"}, 1, false},
		{[]string{"-scope", "stock"}, 3, false},
		{[]string{"-kind", "message"}, 2, false},
		{[]string{"-kind", "message", "-all"}, 3, false},
		{[]string{"-state", "waiting"}, 3, false},
		{[]string{"-kind", "call", "-state", "waiting"}, 0, false},
		{[]string{"-limit", "2"}, 2, true},
		{[]string{"-limit", "4"}, 4, false},
	} {
		r := f.run(append([]string{"parked", "list", "-json"}, c.args...)...).want(t, statusGood)
		if n := strings.Count(r.out, "\n"); n != c.rows || strings.Contains(r.err, "there are more") != c.more {
			t.Errorf("%q: %d rows, want %d; %s", c.args, n, c.rows, r.err)
		}
	}
}
