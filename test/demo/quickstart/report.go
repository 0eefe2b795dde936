package quickstart

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/test/check"
	"github.com/onlyonce/onlyonce/test/demo/command"
	"github.com/onlyonce/onlyonce/test/screen"
)

// Report is the outcome of a run, and what -json prints. The names are the project's (see
// docs/rules/words.md).
type Report struct {
	Produced          int     `json:"produced"`            // records written, copies and second production included
	Unique            int     `json:"unique"`              // distinct message ids
	Delivered         int     `json:"delivered"`           // times the handler was entered
	Effects           int     `json:"effects"`             // rows of effect
	Duplicates        int     `json:"duplicates"`          // deliveries suppressed: the sum of the next two
	DuplicatesByKey   int     `json:"duplicates_by_key"`   // records skipped because their id was claimed
	DuplicatesByFence int     `json:"duplicates_by_fence"` // records that the reset asked for and the cursors did not go back to
	Redelivered       int     `json:"redelivered"`         // records fetched again after a kill or restart, or produced a second time
	Parked            int     `json:"parked"`              // messages set aside
	Kills             int     `json:"kills"`               // SIGKILLs
	KillsInBatch      int     `json:"kills_in_batch"`      // of them in the middle of a batch
	PaymentCalls      int     `json:"payment_calls"`       // raw calls at the payment endpoint
	PaymentFaults     int     `json:"payment_faults"`      // calls that it failed on purpose
	Payments          int     `json:"payments"`            // distinct keys that it has charged
	Missing           int     `json:"missing"`             // messages neither applied nor parked
	Doubled           int     `json:"doubled"`             // messages applied more than once
	Seconds           float64 `json:"seconds"`             // from the first record to the last call
	OK                bool    `json:"ok"`                  // everything above is as it must be
	Error             string  `json:"error,omitempty"`     // why the run did not come to its end
	Postgres          string  `json:"postgres"`            // what was used
	Kafka             string  `json:"kafka"`               //
	Scope             string  `json:"scope"`               // also the topic, the group and the sink

	verdict      check.Verdict
	parkedBy     map[string]int // by reason
	kills        int            // asked for
	afterKill    int            // part of Redelivered
	userMessages bool
}

// Good is true if everything is as it must be.
func (r Report) Good() bool { return r.OK }

// Unfinished is the report of a run that did not come to its end.
func (d *demo) Unfinished(why error) any {
	return Report{Error: why.Error(), Scope: d.run, Unique: len(d.stream.ids), Postgres: d.servers.Postgres.How, Kafka: d.servers.Kafka.How}
}

// Judge reads what is there, and compares it with what was produced.
func (d *demo) Judge(ctx context.Context, took time.Duration) (command.Report, error) {
	if d.tamper != nil {
		if err := d.tamper(ctx, d.servers.Postgres.Pool, d.run); err != nil {
			return nil, err
		}
	}
	f, err := d.collect(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the outcome: %w", err)
	}
	delivered, refetched, err := d.fleet.Delivered()
	ends, endsErr := d.servers.Kafka.Ends(ctx, d.run, d.opts.partitions)
	if err := errors.Join(err, endsErr); err != nil {
		return nil, fmt.Errorf("reading the outcome: %w", err)
	}
	r := Report{
		Unique:            len(f.IDs),
		Delivered:         delivered,
		Effects:           check.Sum(f.Effects),
		Parked:            check.Sum(f.Parked),
		DuplicatesByFence: int(d.rewound),
		Redelivered:       refetched + d.second,
		Kills:             d.kills + d.fleet.StrayKills(),
		KillsInBatch:      d.inBatch,
		Seconds:           took.Seconds(),
		Postgres:          d.servers.Postgres.How,
		Kafka:             d.servers.Kafka.How,
		Scope:             d.run,
		verdict:           check.Judge(f.Facts),
		parkedBy:          f.reasons,
		kills:             d.opts.kills,
		afterKill:         refetched,
		userMessages:      d.stream.lines != nil,
	}
	for _, end := range ends {
		r.Produced += int(end)
	}
	// Every record of the log is applied, parked or skipped.
	r.DuplicatesByKey = r.Produced - r.Effects - r.Parked
	r.Duplicates = r.DuplicatesByKey + r.DuplicatesByFence
	r.PaymentCalls, r.Payments, r.PaymentFaults = d.payments.Count()
	for _, fault := range r.verdict.Faults {
		switch fault.What {
		case check.Missing:
			r.Missing = len(fault.IDs)
		case check.Doubled:
			r.Doubled = len(fault.IDs)
		}
	}
	r.OK = r.verdict.OK() && r.Effects+r.Parked == r.Unique && r.Payments == r.Effects && r.KillsInBatch >= r.kills
	return r, nil
}

// Write prints the table, and what it proves or what is wrong.
func (r Report) Write(t *command.Table) {
	t.Space()
	t.Row("unique", r.Unique, "messages, by their ids")
	t.Row("produced", r.Produced, "records: copies, and everything a second time")
	t.Row("delivered", r.Delivered, "times the handler was entered")
	t.Row("redelivered", r.Redelivered, "%s after a kill, the rest by second production", screen.Count(int64(r.afterKill)))
	t.Row("duplicates",
		r.Duplicates,
		"suppressed: %s by key, %s by fence",
		screen.Count(int64(r.DuplicatesByKey)),
		screen.Count(int64(r.DuplicatesByFence)))
	t.Row("kills", r.Kills, "SIGKILLs, %d of them in mid-batch", r.KillsInBatch)
	t.Row("effects", r.Effects, "rows written by the handler")
	t.Row("parked", r.Parked, "%s", r.parkedNote())
	t.Row("payment_calls", r.PaymentCalls, "%s of them failed by the endpoint, on purpose", screen.Count(int64(r.PaymentFaults)))
	t.Row("payments", r.Payments, "distinct keys charged")
	t.Space()
	if r.OK {
		t.Good(r.sentence())
		return
	}
	for _, f := range r.verdict.Faults {
		t.Wrong("%s", f)
	}
	if r.KillsInBatch < r.kills {
		t.Wrong("%d of %d kills hit a batch in progress", r.KillsInBatch, r.kills)
	}
	if r.Effects+r.Parked != r.Unique || r.Payments != r.Effects {
		t.Wrong("effects %d + parked %d against unique %d; payments %d", r.Effects, r.Parked, r.Unique, r.Payments)
	}
}

// sentence says what the table proves, and no more.
func (r Report) sentence() string {
	s := fmt.Sprintf(
		"Delivered at least once, applied once: each of the %s messages has exactly one effect (%s) or is parked (%s), never both, "+
			"and each effect was charged under exactly one key, although ",
		screen.Count(int64(r.Unique)),
		screen.Count(int64(r.Effects)),
		screen.Count(int64(r.Parked)),
	)
	if r.Kills > 0 {
		s += fmt.Sprintf("%s, ", screen.Plural(r.Kills, "worker process was", "worker processes were")+" killed with SIGKILL")
	}
	return s + fmt.Sprintf("the group's offsets were reset, everything was produced twice, and %s of %s payment calls failed.",
		screen.Count(int64(r.PaymentFaults)), screen.Count(int64(r.PaymentCalls)))
}

func (r Report) parkedNote() string {
	var reasons []string
	for reason, n := range r.parkedBy {
		reasons = append(reasons, fmt.Sprintf("%s: %s", reason, screen.Count(int64(n))))
	}
	slices.Sort(reasons)
	note := "set aside"
	if len(reasons) > 0 {
		note += ", " + strings.Join(reasons, ", ")
	}
	if r.parkedBy["permanent"] > 0 && !r.userMessages {
		note += " (bad orders)"
	}
	return note
}
