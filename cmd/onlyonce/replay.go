package main

import (
	"context"
	"flag"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"
)

// replaysSQL lets one replay of a scope be made at a time: two that ran at once would get the same number. In: scope. Until the
// transaction ends; bounded by lock_timeout.
const replaysSQL = `select pg_advisory_xact_lock(hashtextextended('onlyonce/replay/' || $1::text, 0))`

// replayNoSQL finds the number of the next replay. In: scope. One number a replay of the scope and not of a cursor: the number is
// part of the keys that messages claim during it, and copies of one message may lie in several partitions. By the
// unique index on (scope, topic, partition).
const replayNoSQL = `select coalesce(max(replay_no), 0) + 1 from onlyonce.cursors where scope = $1`

// replaySQL begins a replay. In: id, from, to, position that it interrupts, number, whether calls get new keys, leader epoch below the position (null:
// not known). By the primary key, under the lock on the lease. It is a run of its own, which has no anchor: nothing tells what lay before the offset. The epoch
// bounds what lies below every offset up to the position that is interrupted, and counts there again when the work goes on.
const replaySQL = `
update onlyonce.cursors
   set run = run + 1, run_start = $2, run_epoch = $7, replay_no = $5, replay_until = $3, replay_resume = $4, replay_resend = $6,
       attempt_offset = null, attempts = 0
 where id = $1`

// replay is what the operator asks for.
type replay struct {
	cursorFilter
	consent
	from, to *int64
	resend   bool

	shownTo *int64 // what -to was, where it was left out, when it was agreed to
}

// replayed is what came of it, and the detail of its audit row.
type replayed struct {
	Scope     string     `json:"scope"`
	Topic     string     `json:"topic"`
	Partition int64      `json:"partition"`
	From      int64      `json:"from"`
	To        int64      `json:"to"`     // the first offset that is not handled again
	Resume    int64      `json:"resume"` // where the work then goes on
	Replay    int32      `json:"replay"`
	Resend    bool       `json:"resend"`
	Before    *cursorRow `json:"before"`
	After     *cursorRow `json:"after"`
}

func replayCommand() command {
	return command{
		name:    "replay",
		args:    "[-postgres URL] -scope S -topic T -partition N -from OFFSET [-to OFFSET] [-resend] -reason WHY [-yes]",
		summary: "handle messages again, and apply them again",
		help: `
Handles the messages from -from up to, and without, -to once more, although they are done: after a handler was wrong and its
effects were undone. Each of them is applied again, ids or not; copies within the range are still applied once. Then the
work goes on where it is now. It shows what will be done and asks first, unless -yes is given.

The range is all that it knows. A record in the range that is a copy of a message outside of it (an earlier offset, or another
partition) is applied, although that message was applied and is not undone: choose a range that has such a copy's original in it,
or undo the original's effect too. Copies that come after the replay are duplicates, also of messages that only the replay handled.

In one transaction the owner is fenced out, the position is set, the replay gets a number that is part of what its messages'
keys are, and an audit row says who did it and why. A consumer that runs begins within seconds by itself; without one, the next
to start does. Meanwhile new messages wait: they come after it. "onlyonce cursor show" tells how far it is, and
"onlyonce cursor adopt -at OFFSET" ends it early. Whether the log still holds the range only a consumer can tell: it halts
if it does not.

Calls that handlers enqueue keep their keys. A call whose row is still in the outbox is not sent again, and one that now asks for
other bytes is a conflict, which fails its message. Where the row is gone the call is written again, under its key: it is sent if the
remote's key window, counted from the time of the message, is still open, and otherwise parked as reconcile. With -resend calls get
keys of their own, so that every remote applies them AGAIN: a charge is charged twice.

It is refused while a replay is under way, and while messages of the range are parked and not settled: redrive or discard them first.

Example:
  onlyonce replay -scope stock -topic orders -partition 0 -from 1200 -to 1300 -reason "held with the wrong sign, INC-7"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			var ask replay
			ask.cursorFilter.flags(fs)
			numberVar(fs, &ask.from, "from", "the first `OFFSET` that is handled again", 0, math.MaxInt64-1)
			numberVar(fs, &ask.to, "to", "the first `OFFSET` that is not (default: the position, which is the most)", 1, math.MaxInt64-1)
			fs.BoolVar(&ask.resend, "resend", false, "give calls that are enqueued new keys: remotes apply them again")
			ask.consent.flags(fs)
			return func(ctx context.Context, a *app) error { return a.replay(ctx, *address, &ask) }
		},
	}
}

func (a *app) replay(ctx context.Context, address string, ask *replay) error {
	if err := ask.whole(&ask.consent, given{"-from", ask.from != nil}); err != nil {
		return err
	}
	if ask.to != nil && *ask.to <= *ask.from {
		return usagef("-to: must be above -from, %d: it is the first offset that is not handled again", *ask.from)
	}
	k := changeKind{action: "replay", subject: "the cursor", waiting: "waiting for the owner's batch to end", look: "onlyonce cursor show"}
	return change(ctx, a, address, k, ask.consent, ask, func(_ context.Context, _ *database, done *replayed, audit int64) error {
		_, _ = fmt.Fprintf(a.out, "Done: replay %d from offset %d up to %d, then on from %d; audit row %d. A consumer that runs begins within seconds.\n",
			done.Replay, done.From, done.To, done.Resume, audit)
		return nil
	})
}

func (q *replay) lock(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, replaysSQL, q.scope); err != nil {
		return err
	}
	return q.lockLease(ctx, tx)
}

func (q *replay) read(ctx context.Context, tx pgx.Tx) (*replayed, error) {
	before, err := q.readThere(ctx, tx)
	if err != nil {
		return nil, err
	}
	d := &replayed{Scope: *q.scope, Topic: *q.topic, Partition: *q.partition, From: *q.from, To: before.Position, Resume: before.Position,
		Resend: q.resend, Before: before}
	switch {
	case before.RetiredAt != nil:
		return nil, &refusal{"the cursor is retired, and nothing was done: `onlyonce cursor adopt -at OFFSET` brings it back"}
	case before.ReplayUntil != nil:
		return nil, &refusal{fmt.Sprintf("replay %d is under way, at offset %d of up to %d, and nothing was done: wait until it has ended, or end it with `onlyonce cursor adopt -at %d`",
			before.Replay, before.Position, *before.ReplayUntil, *before.ReplayResume)}
	case q.to != nil:
		d.To = *q.to
	case q.shownTo != nil:
		d.To = *q.shownTo // the owner may have gone on since: what was agreed to is this much
	}
	switch {
	case d.From >= before.Position:
		return nil, &refusal{fmt.Sprintf("-from: offset %d was not handled yet, and nothing was done: the position is %d", d.From, before.Position)}
	case d.To > before.Position:
		return nil, &refusal{fmt.Sprintf("-to: must not be above the position, %d, and nothing was done: what lies behind it is handled anyway", before.Position)}
	}
	var parked, waiting int64
	if err := tx.QueryRow(ctx, leftSQL, q.scope, q.topic, q.partition, d.From, d.To).Scan(&parked, &waiting); err != nil {
		return nil, err
	}
	if parked > 0 {
		return nil, &refusal{fmt.Sprintf("%d messages from offset %d to %d are parked and not settled (%d wait for an operator), and nothing was done: "+
			"they would be applied twice; first `onlyonce parked redrive` or `onlyonce parked discard`, with %s",
			parked, d.From, d.To-1, waiting, q.flagsAgain())}
	}
	if err := tx.QueryRow(ctx, replayNoSQL, q.scope).Scan(&d.Replay); err != nil {
		return nil, err
	}
	q.shownTo = &d.To
	after := *before
	after.Epoch, after.Run, after.Position = before.Epoch+1, before.Run+1, d.From
	after.Replay, after.ReplayUntil, after.ReplayResume, after.ReplayResend = d.Replay, &d.To, &d.Resume, d.Resend
	after.AnchorOffset, after.AttemptOffset, after.Attempts = nil, nil, 0
	d.After = &after
	return d, nil
}

// flagsAgain are the flags that name the partition, for a shell.
func (q *replay) flagsAgain() string {
	return fmt.Sprintf("-scope %s -topic %s -partition %d -reason WHY", shellQuote(*q.scope), shellQuote(*q.topic), *q.partition)
}

func (q *replay) differs(shown, now *replayed) bool { return changed(shown.Before, now.Before) }

func (q *replay) do(ctx context.Context, tx pgx.Tx, now *replayed) (*replayed, error) {
	if err := fence(ctx, tx, now.Before); err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, replaySQL, now.Before.ID, now.From, now.To, now.Resume, now.Replay, now.Resend, now.Before.LeaderEpoch); err != nil {
		return nil, err
	}
	var err error
	now.After, err = q.readBack(ctx, tx)
	return now, err
}

func (q *replay) write(a *app, d *replayed) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
	a.writeCursorChange(d.Before, d.After)
	say("Applied AGAIN: every message from offset %d to %d that the log still holds, %d offsets. Their ids do not keep them out; copies within the range are applied once; "+
		"a copy whose original lies outside of the range is applied too, although the original is not undone.",
		d.From, d.To-1, d.To-d.From)
	if d.From < d.Before.StartOffset {
		say("Offsets below %d, where this cursor began, were never handled by it: they are handled for the first time.", d.Before.StartOffset)
	}
	say("Then the work goes on at offset %d. Until then messages from there on wait.", d.Resume)
	if d.Resend {
		say("-resend: calls that their handlers enqueue get NEW keys. Every remote applies them AGAIN: what was charged or sent once is charged or sent twice.")
		return
	}
	say("Calls that their handlers enqueue keep their keys: those whose rows are still in the outbox are not sent again, and one with other bytes is a conflict, which fails its message. A call whose row is gone is written again under its key: sent if the remote's key window, counted from the time of the message, is open, else parked as reconcile.")
}
