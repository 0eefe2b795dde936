package console

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/ops"
)

// reported is a status with these needs, of which all was counted.
func reported(needs []ops.Need) *status {
	return &status{StatusReport: &ops.StatusReport{Needs: needs, Parked: reports.ParkedTotals{Counted: true}, OutboxCounted: true}}
}

// The first line says whether something needs a person, and never that nothing does if that is not
// known.
func TestS3Lead(t *testing.T) {
	t.Parallel()
	uncounted := reported(nil)
	uncounted.Parked.Counted = false
	unsent := reported(nil)
	unsent.OutboxCounted = false
	one := ops.Need{Text: "cannot join: scope billing, 1 process."}
	halted := ops.Need{Text: "halted: scope stock, orders/4, gap for 5m12s: the log begins at 52300, and the position is 52118"}
	long := ops.Need{Text: strings.Repeat("é", 500)}
	now := time.Now()
	for _, c := range []struct {
		s     *status
		state asked
		want  string
	}{
		{reported(nil), asked{At: now}, "Nothing needs you."},
		{reported([]ops.Need{one}), asked{At: now}, "1 thing needs you: cannot join: scope billing, 1 process."},
		{reported([]ops.Need{one, one, one}), asked{At: now}, "3 things need you: the first is “cannot join: scope billing, 1 process”."},
		{
			reported([]ops.Need{halted, one}),
			asked{At: now},
			"2 things need you: the first is “halted: scope stock, orders/4, gap for 5m12s: the log begins at 52300”.",
		},
		{uncounted, asked{At: now}, "Nothing needs you, as far as it was counted"},
		{unsent, asked{At: now}, "Nothing needs you, as far as it was counted"},
		{reported(nil), asked{At: now, Err: context.DeadlineExceeded}, "The database does not answer: what follows is old."},
		{nil, asked{Err: context.DeadlineExceeded}, "The database does not answer: nothing is known yet."},
		{nil, asked{Err: migrations.ErrSchema}, "The schema of this database does not fit this console."},
	} {
		if got := lead(c.s, c.state); !strings.HasPrefix(got, c.want) {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	if n := len([]rune(lead(reported([]ops.Need{long}), asked{At: now}))); n > leadLength+30 {
		t.Errorf("%d characters", n)
	}
}

// The first line of several databases names those that do not answer before those that need a
// person.
func TestS3LeadOfSeveral(t *testing.T) {
	t.Parallel()
	fine := fleetRow{Database: "a"}
	bad := fleetRow{Database: "b", Bad: true, First: "does not answer"}
	needs := fleetRow{Database: "c", Needs: 2, First: "no consumer runs"}
	for want, rows := range map[string][]fleetRow{
		"Nothing needs you in 2 databases.":                                                                           {fine, fine},
		"1 of 2 databases: no answer, the first is b.":                                                                {fine, bad},
		"1 of 2 databases need you: the first is c, “no consumer runs”.":                                              {fine, needs},
		"1 of 3 databases: no answer, the first is b. 1 of 3 databases need you: the first is c, “no consumer runs”.": {needs, fine, bad},
	} {
		if got := leadOf(rows); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
