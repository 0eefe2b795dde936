package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// retireSQL retires a cursor. In: id. By the primary key, under the lock on its lease.
const retireSQL = `update onlyonce.cursors set retired_at = clock_timestamp() where id = $1`

// leftSQL counts what is parked of a partition and not settled. In: scope, topic, partition, and the offsets from and to (null: any). One
// row: how many, and how many of them wait for an operator. By the index parked_position.
const leftSQL = `
select count(*), count(*) filter (where state = 'waiting') from onlyonce.parked
 where kind <> 'call' and settled_at is null and scope = $1 and topic = $2 and partition = $3
   and ($4::bigint is null or "offset" >= $4) and ($5::bigint is null or "offset" < $5)`

// retirement is what the operator asks for.
type retirement struct {
	cursorFilter
	consent
}

// retired is what came of it, and the detail of its audit row.
type retired struct {
	Scope     string     `json:"scope"`
	Topic     string     `json:"topic"`
	Partition int64      `json:"partition"`
	Before    *cursorRow `json:"before"`
	After     *cursorRow `json:"after"`
	Parked    int64      `json:"parked"` // not settled
}

func cursorRetireCommand() command {
	return command{
		name:    "cursor retire",
		args:    "[-postgres URL] -scope S -topic T -partition N -reason WHY [-yes]",
		summary: "take a cursor out of use",
		help: `
Takes a cursor out of use: of a topic that is gone, or of a consumer that will not come back. In one transaction its
owner is fenced out, the cursor is marked, and an audit row says who did it and why. It shows what was and what will be, and
asks first, unless -yes is given.

Nobody works on a retired cursor, and it holds back retention for one horizon more (it may be moved with its keys, or brought
back), and then none. A consumer that gets its partition halts, with reason
"retired". Nothing at or behind its position is handled, and nothing of what is parked there is tried again. The row stays, so
that nobody starts the partition over by mistake: "onlyonce cursor adopt -at OFFSET" brings it back.

Example:
  onlyonce cursor retire -scope stock -topic orders-2023 -partition 0 -reason "topic deleted, OPS-12"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			var ask retirement
			ask.cursorFilter.flags(fs)
			ask.consent.flags(fs)
			return func(ctx context.Context, a *app) error { return a.retire(ctx, *address, &ask) }
		},
	}
}

func (a *app) retire(ctx context.Context, address string, ask *retirement) error {
	if err := ask.whole(&ask.consent); err != nil {
		return err
	}
	k := changeKind{action: "cursor retire", subject: "the cursor", waiting: "waiting for the owner's batch to end", look: "onlyonce cursor show"}
	return change(ctx, a, address, k, ask.consent, ask, func(_ context.Context, _ *database, done *retired, audit int64) error {
		_, _ = fmt.Fprintf(a.out, "Done: retired at offset %d; audit row %d.\n", done.After.Position, audit)
		return nil
	})
}

func (q *retirement) lock(ctx context.Context, tx pgx.Tx) error { return q.lockLease(ctx, tx) }

func (q *retirement) read(ctx context.Context, tx pgx.Tx) (*retired, error) {
	before, err := q.readThere(ctx, tx)
	if err != nil {
		return nil, err
	}
	if before.RetiredAt != nil {
		return nil, &nothing{fmt.Sprintf("The cursor (%s) was retired at %s already: nothing was changed.", q.cursorFilter, instant(*before.RetiredAt))}
	}
	after, soon := *before, time.Now() // the database's clock writes it
	after.Epoch, after.RetiredAt = before.Epoch+1, &soon
	d := &retired{Scope: *q.scope, Topic: *q.topic, Partition: *q.partition, Before: before, After: &after}
	var waiting int64
	return d, tx.QueryRow(ctx, leftSQL, q.scope, q.topic, q.partition, (*int64)(nil), (*int64)(nil)).Scan(&d.Parked, &waiting)
}

func (q *retirement) differs(shown, now *retired) bool { return changed(shown.Before, now.Before) }

func (q *retirement) do(ctx context.Context, tx pgx.Tx, now *retired) (*retired, error) {
	if err := fence(ctx, tx, now.Before); err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, retireSQL, now.Before.ID); err != nil {
		return nil, err
	}
	var err error
	now.After, err = q.readBack(ctx, tx)
	return now, err
}

func (q *retirement) write(a *app, d *retired) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
	a.writeCursorChange(d.Before, d.After)
	say("It is out of use from then on: nothing at or behind offset %d is handled, until `onlyonce cursor adopt -at OFFSET` brings it back.", d.Before.Position)
	if d.Parked > 0 {
		say("%d parked messages of it are not settled. None is tried again: discard them, or settle them before you retire it.", d.Parked)
	}
	if !d.Before.Clean {
		say("Its last owner has not let go in order: it died, is halted, or still works. If it works it will halt.")
	}
	if d.Before.ReplayUntil != nil {
		say("A replay is under way, which interrupted the work at offset %d.", *d.Before.ReplayResume)
	}
}
