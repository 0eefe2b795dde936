package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Calls that were delivered, with their captured answers, are counted apart from what was in
// trouble, and are listed only if they are asked for.
func TestCapturedCallsAreCountedApart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	row := func(reason string) {
		f.exec(
			`insert into onlyonce.parked (kind, state, reason, scope, sink, call_name, settled_at)
				values ('call', 'resolved', $1, 'orders', 'payments', 'charge', clock_timestamp())`,
			reason,
		)
	}
	for range 3 {
		row("completion")
	}
	row("failed")
	f.run("status").want(t, statusGood, "Parked: 0 not settled, 1 settled\n", "Captured: 3 calls delivered, with the answer kept")
	page := httptest.NewRecorder()
	drillOf(t, f).console.ServeHTTP(page, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	if !strings.Contains(page.Body.String(), "3 calls delivered, with the answer kept") {
		t.Errorf("the console does not count them apart:\n%s", page.Body)
	}
	if out := f.run("parked", "list", "-all").want(t, statusGood, "failed").out; strings.Contains(out, "completion") {
		t.Errorf("calls that were delivered are listed as parked:\n%s", out)
	}
	if out := f.run("parked", "list", "-all", "-parked-for", "completion").want(t, statusGood).out; strings.Count(out, "completion") != 3 {
		t.Errorf("they are not found:\n%s", out)
	}
}
