package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// sinkSQL reads a sink. In: name. One row, or none. By the primary key.
const sinkSQL = `select name, paused_at, paused_by, pause_reason from onlyonce.sinks where name = $1`

// sinkNamesSQL lists the sinks that a relay has listed. No more than a person reads.
const sinkNamesSQL = `select name from onlyonce.sinks order by name limit 20`

// lockSinkSQL locks a sink against those who pause and resume it; lanes may refer to it meanwhile. In: name.
const lockSinkSQL = `select name from onlyonce.sinks where name = $1 for no key update`

// pauseSinkSQL and resumeSinkSQL set and end a pause. In: name; reason. By the primary key, under the lock on the row.
const (
	pauseSinkSQL = `
insert into onlyonce.sinks (name, paused_at, paused_by, pause_reason) values ($1, clock_timestamp(), current_user, $2)
on conflict (name) do update set paused_at = excluded.paused_at, paused_by = excluded.paused_by, pause_reason = excluded.pause_reason`
	resumeSinkSQL = `update onlyonce.sinks set paused_at = null, paused_by = null, pause_reason = null where name = $1`
)

type sinkRow struct {
	Name        string     `json:"sink"`
	PausedAt    *time.Time `json:"paused_at"`
	PausedBy    *string    `json:"paused_by"`
	PauseReason *string    `json:"pause_reason"`
}

// paused says since when, by whom and why.
func (s *sinkRow) paused() string {
	return fmt.Sprintf("since %s by %s: %s", instant(*s.PausedAt), cell(orDash(s.PausedBy)), oneLine(orDash(s.PauseReason)))
}

// sinkStop is a pause of a sink or its end, as the operator asks for it. What came of it, and the detail of the audit row, is the sink as it was.
type sinkStop struct {
	consent
	sink     *string
	resume   bool
	unlisted bool
}

func outboxPauseCommand() command {
	return command{
		name:    "outbox pause",
		args:    "[-postgres URL] -sink S [-unlisted] -reason WHY [-yes]",
		summary: "start no more calls to a sink",
		help: `
Has relays start no more calls to a sink until somebody resumes it: while a remote is being repaired, say, or must not be called.
It outlasts restarts. Calls that are under way end; relays keep their lanes. Applications go on enqueueing, and nothing is lost, but keys
age: what was called before without a final answer goes to state reconcile if the remote may have forgotten its key meanwhile.

A sink that no relay has listed is refused, because its name may be misspelt. -unlisted pauses it all the same: ahead of its first relay, which then starts no call.

It asks first, unless -yes is given, and writes an audit row. What is paused already stays so: status 0, nothing is written.

Example:
  onlyonce outbox pause -sink payments -reason "the bank asks us to stop, INC-9"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			ask := &sinkStop{}
			fs.BoolVar(&ask.unlisted, "unlisted", false, "although no relay has listed the sink yet")
			return sinkStopFlags(fs, ask)
		},
	}
}

func outboxResumeCommand() command {
	return command{
		name:    "outbox resume",
		args:    "[-postgres URL] -sink S -reason WHY [-yes]",
		summary: "end the pause of a sink",
		help: `
Ends a pause that "onlyonce outbox pause" began. Relays go on within a second or two.

It asks first, unless -yes is given, and writes an audit row. What is not paused stays so: status 0, nothing is written.

Example:
  onlyonce outbox resume -sink payments -reason "the bank is back, INC-9"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			return sinkStopFlags(fs, &sinkStop{resume: true})
		},
	}
}

func sinkStopFlags(fs *flag.FlagSet, ask *sinkStop) func(context.Context, *app) error {
	address := postgresVar(fs)
	textVar(fs, &ask.sink, "sink", "the sink `S`")
	ask.consent.flags(fs)
	return func(ctx context.Context, a *app) error { return a.stopSink(ctx, *address, ask) }
}

func (a *app) stopSink(ctx context.Context, address string, ask *sinkStop) error {
	if err := missing(given{"-sink", ask.sink != nil}, given{"-reason", ask.reason != nil}); err != nil {
		return err
	}
	k := changeKind{action: "outbox pause", subject: "the sink", waiting: "waiting for another transaction", look: "onlyonce outbox status"}
	end := "relays start no more calls to it within a second or two; those under way end."
	if ask.resume {
		k.action, end = "outbox resume", "relays go on within a second or two."
	}
	return change(ctx, a, address, k, ask.consent, ask, func(_ context.Context, _ *database, _ *sinkRow, audit int64) error {
		_, _ = fmt.Fprintf(a.out, "Done; audit row %d: %s\n", audit, end)
		return nil
	})
}

func (q *sinkStop) lock(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, lockSinkSQL, q.sink)
	return err
}

func (q *sinkStop) read(ctx context.Context, tx pgx.Tx) (*sinkRow, error) {
	rows, err := collect[sinkRow](ctx, tx, sinkSQL, q.sink)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 && q.unlisted {
		return &sinkRow{Name: *q.sink}, nil
	}
	if len(rows) == 0 {
		err := unknownSink(ctx, tx, *q.sink)
		if !q.resume {
			err = fmt.Errorf("%w; -unlisted pauses it ahead of its first relay", err)
		}
		return nil, err
	}
	s := &rows[0]
	utc(s.PausedAt)
	switch {
	case !q.resume && s.PausedAt != nil:
		return nil, &nothing{fmt.Sprintf("Sink %s was paused already, %s: nothing was changed.", cell(s.Name), s.paused())}
	case q.resume && s.PausedAt == nil:
		return nil, &nothing{fmt.Sprintf("Sink %s is not paused: nothing was changed.", cell(s.Name))}
	}
	return s, nil
}

// unknownSink names the sinks there are.
func unknownSink(ctx context.Context, tx pgx.Tx, name string) error {
	type one struct{ Name string }
	known, err := collect[one](ctx, tx, sinkNamesSQL)
	if err != nil {
		return err
	}
	if len(known) == 0 {
		return usagef("-sink: there is no sink %q: no relay of this schema version has listed one yet", name)
	}
	text := ""
	for i, k := range known {
		if i > 0 {
			text += ", "
		}
		text += k.Name
	}
	return usagef("-sink: there is no sink %q: relays have listed %s", name, text)
}

// differs: a pause that came or went meanwhile leaves nothing to do, and read says so.
func (q *sinkStop) differs(_, _ *sinkRow) bool { return false }

func (q *sinkStop) do(ctx context.Context, tx pgx.Tx, now *sinkRow) (*sinkRow, error) {
	var err error
	if q.resume {
		_, err = tx.Exec(ctx, resumeSinkSQL, q.sink)
	} else {
		_, err = tx.Exec(ctx, pauseSinkSQL, q.sink, q.reason)
	}
	return now, err
}

func (q *sinkStop) write(a *app, s *sinkRow) {
	if q.resume {
		_, _ = fmt.Fprintf(a.out, "Resume sink %s, paused %s\n", cell(s.Name), s.paused())
		return
	}
	_, _ = fmt.Fprintf(a.out, "Pause sink %s: no call to it is started until it is resumed.\n", cell(s.Name))
}
