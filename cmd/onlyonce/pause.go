package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// pausesSQL reads the pauses that hold a partition, or a scope as a whole, and those of single partitions of that scope. In: scope.
// By the primary key.
const pausesSQL = `
select scope, topic, partition, paused_at, actor, reason from onlyonce.pauses where scope = $1 order by topic, partition`

// pauseSQL and resumeSQL write and remove a pause. In: scope, topic (empty for the whole scope), partition (-1), and a reason. One
// row, or none where there is nothing to do.
const (
	pauseSQL = `
insert into onlyonce.pauses (scope, topic, partition, reason) values ($1::text, $2::text, $3::integer, $4::text)
on conflict do nothing returning paused_at`
	resumeSQL = `delete from onlyonce.pauses where scope = $1 and topic = $2 and partition = $3 returning paused_at`
)

// knownSQL counts the cursors that a pause is about. In: scope, topic, partition (each of the latter may be null: any).
const knownSQL = `
select count(*) from onlyonce.cursors
 where scope = $1 and ($2::text is null or topic = $2) and ($3::integer is null or partition = $3) and retired_at is null`

type pauseRow struct {
	Scope     string    `json:"scope"`
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	PausedAt  time.Time `json:"paused_at"`
	Actor     string    `json:"actor"`
	Reason    string    `json:"reason"`
}

// what names what a pause holds.
func (p *pauseRow) what() string {
	if p.Topic == "" {
		return fmt.Sprintf("scope %s as a whole", cell(p.Scope))
	}
	return fmt.Sprintf("scope %s, topic %s, partition %d", cell(p.Scope), cell(p.Topic), p.Partition)
}

// stop is a pause or its end, as the operator asks for it.
type stop struct {
	cursorFilter
	consent
	resume bool
}

// stopped is what came of it, and the detail of its audit row.
type stopped struct {
	Scope     string     `json:"scope"`
	Topic     *string    `json:"topic"`     // null: the whole scope
	Partition *int64     `json:"partition"` // null: the whole scope
	Cursors   int64      `json:"cursors"`   // that this is about
	Was       *pauseRow  `json:"was"`       // of an end: the pause
	others    []pauseRow // of the scope
}

func cursorPauseCommand() command {
	return command{
		name:    "cursor pause",
		args:    "[-postgres URL] -scope S [-topic T -partition N] -reason WHY [-yes]",
		summary: "let the work on a partition, or on a whole scope, stand still",
		help: `
Lets the work on a partition, or with -scope alone on everything of that scope, stand still until somebody resumes it. It
outlasts restarts. Whoever works there notices within a second or two, finishes the batch in hand, and keeps the
partition; nothing is lost, and Kafka goes on collecting. Parked messages are not tried meanwhile. "onlyonce cursor show" tells
what is paused.

It asks first, unless -yes is given, and writes an audit row. What is paused already stays so: status 0, nothing is written.

Example:
  onlyonce cursor pause -scope stock -topic orders -partition 3 -reason "stock table is being repaired, INC-9"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error { return stopFlags(fs, &stop{}) },
	}
}

func cursorResumeCommand() command {
	return command{
		name:    "cursor resume",
		args:    "[-postgres URL] -scope S [-topic T -partition N] -reason WHY [-yes]",
		summary: "end a pause",
		help: `
Ends a pause that was made with the same -scope, -topic and -partition. A pause of the whole scope holds every partition of it
until it is ended itself; pauses of single partitions outlast it. Work goes on within a second or two.

It asks first, unless -yes is given, and writes an audit row. What is not paused stays so: status 0, nothing is written.

Example:
  onlyonce cursor resume -scope stock -topic orders -partition 3 -reason "repaired, INC-9"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error { return stopFlags(fs, &stop{resume: true}) },
	}
}

func stopFlags(fs *flag.FlagSet, ask *stop) func(context.Context, *app) error {
	address := postgresVar(fs)
	ask.cursorFilter.flags(fs)
	ask.consent.flags(fs)
	return func(ctx context.Context, a *app) error { return a.stop(ctx, *address, ask) }
}

func (a *app) stop(ctx context.Context, address string, ask *stop) error {
	if err := missing(given{"-scope", ask.scope != nil}, given{"-reason", ask.reason != nil}); err != nil {
		return err
	}
	if (ask.topic == nil) != (ask.partition == nil) {
		return usagef("-topic and -partition go together: without both, the whole scope is meant")
	}
	k := changeKind{action: "cursor pause", subject: "the pauses", waiting: "waiting for another transaction", look: "onlyonce cursor show"}
	end := "whoever works there stops within a second or two, behind the batch in hand."
	if ask.resume {
		k.action, end = "cursor resume", "work goes on within a second or two."
	}
	return change(ctx, a, address, k, ask.consent, ask, func(_ context.Context, _ *database, _ *stopped, audit int64) error {
		_, _ = fmt.Fprintf(a.out, "Done; audit row %d: %s\n", audit, end)
		return nil
	})
}

// key is the primary key of the pause: empty and -1 for the whole scope.
func (q *stop) key() (topic string, partition int32) {
	if q.topic == nil {
		return "", -1
	}
	return *q.topic, int32(*q.partition)
}

// lock takes none: the primary key decides.
func (q *stop) lock(context.Context, pgx.Tx) error { return nil }

func (q *stop) read(ctx context.Context, tx pgx.Tx) (*stopped, error) {
	d := &stopped{Scope: *q.scope, Topic: q.topic, Partition: q.partition}
	pauses, err := collect[pauseRow](ctx, tx, pausesSQL, q.scope)
	if err != nil {
		return nil, err
	}
	topic, partition := q.key()
	var whole *pauseRow
	for i := range pauses {
		p := &pauses[i]
		utc(&p.PausedAt)
		if p.Topic == "" {
			whole = p
		}
		if p.Topic == topic && p.Partition == partition {
			d.Was = p
		} else {
			d.others = append(d.others, *p)
		}
	}
	switch {
	case !q.resume && d.Was != nil:
		return nil, &nothing{fmt.Sprintf("%s was paused already, at %s by %s (%s): nothing was changed.", d.Was.what(), instant(d.Was.PausedAt), d.Was.Actor, d.Was.Reason)}
	case q.resume && d.Was == nil && whole != nil:
		return nil, &nothing{fmt.Sprintf("It is not paused itself, but %s is, since %s by %s (%s): nothing was changed; to end that, leave out -topic and -partition.",
			whole.what(), instant(whole.PausedAt), whole.Actor, whole.Reason)}
	case q.resume && d.Was == nil && len(pauses) > 0 && topic == "":
		return nil, &nothing{fmt.Sprintf("The scope as a whole is not paused: nothing was changed. Paused is %s: give its -topic and -partition.", pauses[0].what())}
	case q.resume && d.Was == nil:
		return nil, &nothing{"It is not paused: nothing was changed."}
	}
	return d, tx.QueryRow(ctx, knownSQL, q.scope, q.topic, q.partition).Scan(&d.Cursors)
}

// differs: a pause that came or went meanwhile leaves nothing to do, and read says so.
func (q *stop) differs(_, _ *stopped) bool { return false }

func (q *stop) do(ctx context.Context, tx pgx.Tx, now *stopped) (*stopped, error) {
	topic, partition := q.key()
	var at time.Time
	var err error
	if q.resume {
		err = tx.QueryRow(ctx, resumeSQL, q.scope, topic, partition).Scan(&at)
	} else {
		err = tx.QueryRow(ctx, pauseSQL, q.scope, topic, partition, q.reason).Scan(&at)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, &nothing{"Somebody else did it at this moment: nothing was changed."}
	}
	return now, err
}

func (q *stop) write(a *app, d *stopped) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
	topic, partition := q.key()
	p := pauseRow{Scope: d.Scope, Topic: topic, Partition: partition}
	if q.resume {
		say("Resume %s, paused at %s by %s: %s", p.what(), instant(d.Was.PausedAt), cell(d.Was.Actor), oneLine(d.Was.Reason))
		for _, o := range d.others {
			say("Still paused: %s, by %s: %s", o.what(), cell(o.Actor), oneLine(o.Reason))
		}
		return
	}
	say("Pause %s: %d cursors in use.", p.what(), d.Cursors)
	if d.Cursors == 0 {
		say("Is the name right? There is no such cursor yet; whatever gets one will stand still at once.")
	}
}
