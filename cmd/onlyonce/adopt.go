package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	adoptLockTimeout = 10 * time.Second // how long the batch in the owner's hands may hold us up
	adoptTimeout     = 30 * time.Second // the transaction as a whole
	commitTimeout    = 15 * time.Second // detached from any request to end
)

// boundsSQL bounds the transaction's waits. In: lock_timeout.
const boundsSQL = `select set_config('lock_timeout', $1, true)`

// lockCursorSQL locks the lease of a cursor. In: scope, topic, partition. One row, or none where there is no cursor. The
// lock waits for the batch of an owner, which holds the row FOR SHARE, and keeps the next one and every taker out. What
// the batch did shows only to a statement after this one.
const lockCursorSQL = `
select l.id from onlyonce.cursors c join onlyonce.leases l on l.id = c.id
 where c.scope = $1 and c.topic = $2 and c.partition = $3
   for no key update of l`

// fenceOwnerSQL raises the epoch and sets a new nonce, so that whatever the present owner still does fails on its
// fence. In: lease, the epoch that was read under the lock. Out: the new epoch; never null under that lock, as the lease
// of a cursor has no time.
const fenceOwnerSQL = `select onlyonce.raise_epoch($1, $2, gen_random_uuid())`

// adoptSQL changes the cursor. In: id, group or null, offset or null. By the primary key, under the lock on its lease.
//
// A position means something in one incarnation of the topic only. So with an offset, cluster and topic are the next
// owner's to stamp, and a new run begins, in which there is no anchor to compare the log with. Without one everything that
// proves the log to be the same stays. The ids above all: once retention has removed the anchor's record they
// are the only proof, and a topic made anew would be read from the old one's position.
const adoptSQL = `
update onlyonce.cursors
   set group_id       = $2::text,
       cluster_id     = case when $3::bigint is null then cluster_id end,
       topic_id       = case when $3::bigint is null then topic_id end,
       run            = case when $3::bigint is null then run else run + 1 end,
       run_start      = coalesce($3::bigint, run_start),
       attempt_offset = case when $3::bigint is null then attempt_offset end,
       attempts       = case when $3::bigint is null then attempts else 0 end
 where id = $1`

// createSQL makes lease and cursor where there is no cursor. In: scope, topic, partition, group or null, offset. One row:
// the id; none if a consumer made the cursor meanwhile. A lease of that name that has lost its cursor is used again, its
// epoch raised; rows of progress that are still there under its id belong to runs before the new one. Relies on the unique
// index on onlyonce.leases.name, on the one on (scope, topic, partition), and on the primary key of onlyonce.progress.
const createSQL = `
with lease as (
  insert into onlyonce.leases as l (name) values ('cursor/' || $1::text || '/' || $2::text || '/' || $3::integer)
  on conflict (name) do update set epoch = l.epoch + 1, nonce = gen_random_uuid(), until = null
  returning id)
insert into onlyonce.cursors (id, scope, topic, partition, group_id, start_offset, run, run_start, start_policy)
select id, $1::text, $2::text, $3::integer, $4::text, $5::bigint,
       coalesce((select max(p.run) + 1 from onlyonce.progress p where p.cursor_id = lease.id), 0), $5::bigint, 'adopted'
  from lease
on conflict do nothing
returning id`

// auditSQL writes down what was done. In: reason, detail. One row: its id.
const auditSQL = `
insert into onlyonce.audit (action, reason, detail) values ('cursor adopt', $1::text, $2::text::jsonb) returning id`

// adoption is what the operator asks for.
type adoption struct {
	cursorFilter
	group  *string
	at     *int64
	reason *string
	yes    bool
}

// adopted is what came of it, and the detail of its audit row.
type adopted struct {
	Scope     string     `json:"scope"`
	Topic     string     `json:"topic"`
	Partition int64      `json:"partition"`
	Before    *cursorRow `json:"before"` // null: there was no cursor
	After     *cursorRow `json:"after"`
	Skipped   *int64     `json:"skipped"`  // null: not known
	Repeated  *int64     `json:"repeated"` // null: not known
	audit     int64
}

func cursorAdoptCommand() command {
	return command{
		name:    "cursor adopt",
		args:    "[-postgres URL] -scope S -topic T -partition N [-group G] [-at OFFSET] -reason WHY [-yes]",
		summary: "resolve a halt: hand a cursor to another group, or set its position",
		help: `
Resolves a halt, in one transaction: whoever owns the cursor is fenced out, the cursor is changed, and an audit row
says who did it and why. It shows what was and what will be, and asks first, unless -yes is given. A consumer that is
halted looks again every few seconds and goes on by itself.

Without -at only the group changes (halt "foreign-group"): the next owner stamps its own, or the one that -group
names. The position stays, and so does everything that proves that the log is the same.

With -at the position is set (halts "new-topic", "foreign-cluster", "truncated", "gap", "history-lost"): OFFSET is
the next that will be handled, in whichever topic of that name the next owner finds, and attempts begin anew. Offsets
between the old position and a higher OFFSET are never handled. With a lower one they are handled again: messages
with a key that is still kept are found to be duplicates, others are applied twice. Where there is no cursor -at makes one.

If the last owner's group still runs, it may be the next one to come: stop it first, or give -group.

Example:
  onlyonce cursor adopt -scope stock -topic orders -partition 0 -at 1200 -reason "retention took 1100 to 1199, INC-7"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			var ask adoption
			ask.flags(fs)
			textVar(fs, &ask.group, "group", "the Kafka group `G` that is to own the cursor (default: the next one to come)")
			numberVar(fs, &ask.at, "at", "the `OFFSET` that is to be handled next (default: the position stays)", 0, math.MaxInt64-1)
			textVar(fs, &ask.reason, "reason", "`WHY`, for the audit row")
			fs.BoolVar(&ask.yes, "yes", false, "do not ask")
			return func(ctx context.Context, a *app) error { return a.adopt(ctx, *address, ask) }
		},
	}
}

// missing names the flags without which nothing can be done.
func (q *adoption) missing() error {
	var names []string
	for _, f := range []struct {
		name  string
		given bool
	}{{"-scope", q.scope != nil}, {"-topic", q.topic != nil}, {"-partition", q.partition != nil}, {"-reason", q.reason != nil}} {
		if !f.given {
			names = append(names, f.name)
		}
	}
	if len(names) > 0 {
		return usagef("missing: %s", strings.Join(names, ", "))
	}
	return nil
}

func (a *app) adopt(ctx context.Context, address string, ask adoption) error {
	if err := ask.missing(); err != nil {
		return err
	}
	if !ask.yes && !a.isTerminal(a.stdin) {
		return usagef("-yes: standard input is no terminal, so nobody can be asked: add -yes to go ahead without")
	}
	return a.withSchema(ctx, address, func(db *database) error {
		var shown *cursorRow
		if !ask.yes {
			var err error
			if shown, err = a.confirm(ctx, db, ask); err != nil {
				return err
			}
		}
		var done *adopted
		err := a.watch("waiting for the owner's batch to end", func() (err error) {
			ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
			defer cancel()
			done, err = ask.transact(ctx, db, shown)
			return err
		})
		if err != nil {
			return err
		}
		if ask.yes {
			a.writeAdoption(done)
		}
		_, _ = fmt.Fprintf(a.out, "Done: the next offset is %d; audit row %d. A halted consumer looks again within seconds.\n",
			done.After.Position, done.audit)
		return nil
	})
}

// confirm shows what would be done and asks. It returns the cursor that was shown, nil where there is none.
func (a *app) confirm(ctx context.Context, db *database, ask adoption) (*cursorRow, error) {
	var before *cursorRow
	bounded, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	err := pgx.BeginTxFunc(bounded, db, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
		before, err = ask.read(bounded, tx)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := ask.check(before); err != nil {
		return nil, err
	}
	a.writeAdoption(ask.outcome(before, ask.planned(before)))
	if err := a.out.Flush(); err != nil {
		return nil, err
	}
	_, _ = fmt.Fprint(a.stderr, "Do this? [y/N] ")
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(a.stdin).ReadString('\n') // the end of input is a no
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case got := <-answer:
		if got != "y" && got != "yes" {
			return nil, &refusal{"the answer was no: nothing was changed"}
		}
	case <-ctx.Done():
		_, _ = fmt.Fprintln(a.stderr)
		return nil, &refusal{"interrupted: nothing was changed"}
	}
	return before, nil
}

// read returns the cursor, nil where there is none.
func (q *adoption) read(ctx context.Context, tx pgx.Tx) (*cursorRow, error) {
	cursors, err := readCursors(ctx, tx, q.cursorFilter)
	if err != nil || len(cursors) == 0 {
		return nil, err
	}
	return &cursors[0], nil
}

// check refuses what cannot be done to the cursor.
func (q *adoption) check(before *cursorRow) error {
	if before == nil && q.at == nil {
		return usagef("there is no cursor (scope %q, topic %q, partition %d): correct the flags, or give -at OFFSET to make one",
			*q.scope, *q.topic, *q.partition)
	}
	return nil
}

// transact does it. shown is what the operator agreed to, unless -yes was given.
func (q *adoption) transact(ctx context.Context, db *database, shown *cursorRow) (*adopted, error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return nil, err
	}
	done, err := q.change(ctx, tx, shown)
	// The end is not cut off by whoever wants this program to stop: COMMIT would have an unknown outcome.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err != nil {
		_ = tx.Rollback(ctx) // err says more
		return nil, err
	}
	err = tx.Commit(ctx)
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return done, nil
	case errors.As(err, &pg) || errors.Is(err, pgx.ErrTxCommitRollback):
		return nil, err
	}
	return nil, fmt.Errorf("nobody knows whether this was committed: look with `onlyonce cursor show` before you try again: %w", err)
}

func (q *adoption) change(ctx context.Context, tx pgx.Tx, shown *cursorRow) (*adopted, error) {
	if _, err := tx.Exec(ctx, boundsSQL, fmt.Sprintf("%dms", adoptLockTimeout.Milliseconds())); err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, lockCursorSQL, q.scope, q.topic, q.partition); err != nil {
		return nil, err
	}
	before, err := q.read(ctx, tx)
	if err != nil {
		return nil, err
	}
	if err := q.check(before); err != nil {
		return nil, err
	}
	if !q.yes && q.differs(shown, before) {
		return nil, &refusal{"the cursor changed while you were asked, and nothing was done: run the command again to see how it stands"}
	}
	if before == nil {
		err = q.create(ctx, tx)
	} else {
		err = q.update(ctx, tx, before)
	}
	if err != nil {
		return nil, err
	}
	after, err := q.read(ctx, tx)
	if err != nil {
		return nil, err
	}
	if after == nil {
		return nil, errors.New("the cursor is not there after it was written")
	}
	done := q.outcome(before, after)
	detail, err := json.Marshal(done)
	if err != nil {
		return nil, err
	}
	return done, tx.QueryRow(ctx, auditSQL, q.reason, string(detail)).Scan(&done.audit)
}

// differs reports whether what was agreed to would now be something else. The owner may go on
// working while the question stands; that matters where the position is to be set, and otherwise not.
func (q *adoption) differs(shown, now *cursorRow) bool {
	if shown == nil || now == nil {
		return shown != now
	}
	return shown.ID != now.ID || shown.Epoch != now.Epoch || shown.Run != now.Run || (q.at != nil && shown.Position != now.Position)
}

func (q *adoption) update(ctx context.Context, tx pgx.Tx, before *cursorRow) error {
	var epoch *int64
	if err := tx.QueryRow(ctx, fenceOwnerSQL, before.ID, before.Epoch).Scan(&epoch); err != nil {
		return err
	}
	if epoch == nil {
		return fmt.Errorf("the lease of cursor %d cannot be raised: its column \"until\" is set, which no cursor's is", before.ID)
	}
	_, err := tx.Exec(ctx, adoptSQL, before.ID, q.group, q.at)
	return err
}

func (q *adoption) create(ctx context.Context, tx pgx.Tx) error {
	var id int64
	err := tx.QueryRow(ctx, createSQL, q.scope, q.topic, q.partition, q.group, q.at).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return &refusal{"a consumer made the cursor at this moment, and nothing was done: run the command again to see how it stands"}
	}
	return err
}

// planned is what the cursor will be, to show before it is done.
func (q *adoption) planned(before *cursorRow) *cursorRow {
	if before == nil {
		return &cursorRow{Scope: *q.scope, Topic: *q.topic, Partition: int32(*q.partition), Position: *q.at, Group: q.group,
			StartOffset: *q.at, StartPolicy: "adopted", Clean: true}
	}
	after := *before
	after.Epoch++
	after.Group = q.group
	if q.at != nil {
		after.Position, after.Run = *q.at, before.Run+1
		after.ClusterID, after.TopicID, after.AnchorOffset = nil, nil, nil
		after.Attempts, after.AttemptOffset = 0, nil
	}
	return &after
}

// outcome puts before and after together.
func (q *adoption) outcome(before, after *cursorRow) *adopted {
	d := &adopted{Scope: *q.scope, Topic: *q.topic, Partition: *q.partition, Before: before, After: after}
	if before != nil {
		skipped, repeated := max(after.Position-before.Position, 0), max(before.Position-after.Position, 0)
		d.Skipped, d.Repeated = &skipped, &repeated
	}
	return d
}
