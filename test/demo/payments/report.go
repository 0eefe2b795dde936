package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/test/check"
	"github.com/onlyonce/onlyonce/test/demo/command"
	"github.com/onlyonce/onlyonce/test/screen"
)

// report is the outcome of a run, and what -json prints. The names are the project's (see
// docs/rules/words.md).
type report struct {
	Requests     int     `json:"requests"`      // sent, those without an answer included; not those that net/http has sent again by itself
	Unique       int     `json:"unique"`        // operations, each under a key of its own
	Effects      int     `json:"effects"`       // rows of charges, captures, refunds, payouts and settlements
	Refused      int     `json:"refused"`       // operations with a final refusal, which leave no row
	Replays      int     `json:"replays"`       // answers that were given again
	InProgress   int     `json:"in_progress"`   // 409: the first request was still under way
	Mismatches   int     `json:"mismatches"`    // 422: the key belonged to another request
	Open         int     `json:"open"`          // 5xx, and refusals for the moment, which are not stored
	TimedOut     int     `json:"timed_out"`     // requests that their client gave up
	Broken       int     `json:"broken"`        // requests whose connection broke, or found no server
	Kills        int     `json:"kills"`         // SIGKILLs of servers with requests under way
	PaymentCalls int     `json:"payment_calls"` // calls at the provider
	Faults       int     `json:"payment_faults"`
	Payments     int     `json:"payments"`  // distinct keys that it has paid
	Missing      int     `json:"missing"`   // operations answered with success and without a row
	Doubled      int     `json:"doubled"`   // operations with more than one row
	Differing    int     `json:"differing"` // keys whose answers differ
	Seconds      float64 `json:"seconds"`
	OK           bool    `json:"ok"`
	Error        string  `json:"error,omitempty"` // why the run did not come to its end
	Postgres     string  `json:"postgres"`
	Run          string  `json:"run"`

	verdict check.Verdict
	kills   int // asked for
}

// Good is true if everything is as it must be.
func (r report) Good() bool { return r.OK }

// Unfinished is the report of a run that did not come to its end.
func (d *demo) Unfinished(why error) any {
	return report{Error: why.Error(), Postgres: d.servers.Postgres.How, Run: d.run}
}

// Judge reads what is there, and compares it with what clients wanted and were answered.
func (d *demo) Judge(ctx context.Context, took time.Duration) (command.Report, error) {
	if d.tamper != nil {
		if err := d.tamper(ctx, d); err != nil {
			return nil, err
		}
	}
	rows, unbalanced, err := effects(ctx, d.servers.Postgres.Pool, d.accounts)
	if err != nil {
		return nil, fmt.Errorf("reading the outcome: %w", err)
	}
	c := d.wire.counts
	m := d.wire.marks
	r := report{
		Requests:   c.requests,
		Unique:     len(d.wants),
		Effects:    check.Sum(rows),
		Replays:    m[idempotency.Replayed],
		InProgress: m[idempotency.InProgress],
		Mismatches: m[idempotency.Mismatch],
		TimedOut:   c.timeouts,
		Broken:     c.broken,
		Kills:      d.kills,
		Seconds:    took.Seconds(),
		Postgres:   d.servers.Postgres.How,
		Run:        d.run,
		kills:      d.opts.kills,
	}
	for mark, n := range m {
		switch mark {
		case idempotency.Created, idempotency.Replayed, idempotency.InProgress, idempotency.Mismatch:
		default:
			r.Open += n
		}
	}
	r.PaymentCalls, r.Payments, r.Faults = d.provider.Count()
	charged, changed := d.provider.ByReference()

	var missing, doubled, without, differ, twice, unpaid, paidTwice, paidWithout []string
	known := map[string]bool{}
	for _, w := range d.wants {
		known[w.reference] = true
		n := rows[w.reference]
		paid := charged[w.reference]
		succeeded := w.first != nil && w.first.status < http.StatusBadRequest
		if !succeeded {
			r.Refused++
		}
		for _, f := range []struct {
			wrong bool
			list  *[]string
		}{
			{succeeded && n == 0, &missing},
			{n > 1, &doubled},
			{!succeeded && n > 0, &without},
			{w.differ, &differ},
			{w.created > 1, &twice},
			{n > 0 && paid == 0, &unpaid},
			{paid > 1, &paidTwice},
			{n == 0 && paid > 0, &paidWithout},
		} {
			if f.wrong {
				*f.list = append(*f.list, w.reference)
			}
		}
	}
	var invented []string
	for reference := range rows {
		if !known[reference] {
			invented = append(invented, reference)
		}
	}
	for reference := range charged {
		if !known[reference] {
			paidWithout = append(paidWithout, reference)
		}
	}
	slices.Sort(unbalanced)
	r.Missing = len(missing)
	r.Doubled = len(doubled)
	r.Differing = len(differ)
	v := &r.verdict
	v.Note("I1", "answered with success, and not there", missing)
	v.Note("I2", "done more than once", doubled)
	v.Note("I3", "done, and never asked for under this reference", invented)
	v.Note("I5", "refused, and done", without)
	v.Note("H13", "one key, and answers that differ", differ)
	v.Note("H13", "one key, and its handler's answer was sent as the first one more than once", twice)
	v.Note("I9", "done, and not paid", unpaid)
	v.Note("I9", "paid under more than one key", paidTwice)
	v.Note("I9", "paid, and not done", paidWithout)
	v.Note("I2", "charges that do not add up", unbalanced)
	if changed > 0 {
		v.Faults = append(v.Faults, check.Fault{
			Rule: "I9",
			What: fmt.Sprintf("%d calls came with other bytes than their key's first", changed),
		})
	}
	if r.Kills < r.kills {
		v.Faults = append(v.Faults, check.Fault{
			Rule: "I1",
			What: fmt.Sprintf("%d of %d kills hit a server with requests under way", r.Kills, r.kills),
		})
	}
	r.OK = v.OK() && r.Effects+r.Refused == r.Unique && r.Payments == r.Effects
	return r, nil
}

// Write prints the table, and what it proves or what is wrong.
func (r report) Write(t *command.Table) {
	t.Space()
	t.Row("unique", r.Unique, "operations, each under a key of its own")
	t.Row("requests",
		r.Requests,
		"sent: %s given up by clients, %s broken off",
		screen.Count(int64(r.TimedOut)),
		screen.Count(int64(r.Broken)))
	t.Row("replays", r.Replays, "answers that were given again: byte for byte, but a settlement's state")
	t.Row("in_progress", r.InProgress, "409: the first request was still under way")
	t.Row("mismatches", r.Mismatches, "422: the key belonged to another request")
	t.Row("open", r.Open, "5xx, and refusals for the moment: undone, not stored, and asked for again")
	t.Row("kills", r.Kills, "SIGKILLs of servers with requests under way")
	t.Row("effects", r.Effects, "rows written by handlers")
	t.Row("refused", r.Refused, "operations with a final refusal: no row")
	t.Row("payment_calls", r.PaymentCalls, "%s of them failed by the provider, on purpose", screen.Count(int64(r.Faults)))
	t.Row("payments", r.Payments, "distinct keys paid")
	t.Space()
	if r.OK {
		t.Good(r.sentence())
		return
	}
	for _, f := range r.verdict.Faults {
		t.Wrong("%s", f)
	}
	if r.Effects+r.Refused != r.Unique || r.Payments != r.Effects {
		t.Wrong("effects %d + refused %d against unique %d; payments %d", r.Effects, r.Refused, r.Unique, r.Payments)
	}
}

// sentence says what the table proves, and no more.
func (r report) sentence() string {
	s := fmt.Sprintf(
		"Asked for at least once, done once: each of the %s operations has exactly one effect (%s) or a "+
			"final refusal and none (%s), each effect "+
			"was paid under exactly one key, and all answers under a key were the same bytes, although ",
		screen.Count(int64(r.Unique)),
		screen.Count(int64(r.Effects)),
		screen.Count(int64(r.Refused)),
	)
	if r.Kills > 0 {
		s += fmt.Sprintf("%s, ", screen.Plural(r.Kills, "server process was", "server processes were")+" killed with SIGKILL")
	}
	return s + fmt.Sprintf("clients sent %s requests, and %s of %s calls to the provider failed.", screen.Count(int64(r.Requests)),
		screen.Count(int64(r.Faults)), screen.Count(int64(r.PaymentCalls)))
}
