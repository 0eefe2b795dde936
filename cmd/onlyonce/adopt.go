package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"
)

// adoptSQL changes the cursor. In: id, group or null, offset or null. By the primary key, under the lock on its lease.
//
// A position means something in one incarnation of the topic only. So with an offset, cluster and topic are the next
// owner's to stamp, and a new run begins, in which there is no anchor and no leader epoch to compare the log with. Without one everything that
// proves the log to be the same stays. The ids above all: once retention has removed the anchor's record they
// are the only proof, and a topic made anew would be read from the old one's position. An offset also brings a retired
// cursor back, and ends a replay.
const adoptSQL = `
update onlyonce.cursors
   set group_id       = $2::text,
       cluster_id     = case when $3::bigint is null then cluster_id end,
       topic_id       = case when $3::bigint is null then topic_id end,
       run            = case when $3::bigint is null then run else run + 1 end,
       run_start      = coalesce($3::bigint, run_start),
       run_epoch      = case when $3::bigint is null then run_epoch end,
       attempt_offset = case when $3::bigint is null then attempt_offset end,
       attempts       = case when $3::bigint is null then attempts else 0 end,
       retired_at     = case when $3::bigint is null then retired_at end,
       replay_until   = case when $3::bigint is null then replay_until end,
       replay_resume  = case when $3::bigint is null then replay_resume end,
       replay_resend  = case when $3::bigint is null then replay_resend else false end,
       redo_until     = case when $3::bigint is null then redo_until else $4::bigint end,
       redo_topic_id  = case when $3::bigint is null then redo_topic_id else $5::uuid end
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

// adoption is what the operator asks for.
type adoption struct {
	cursorFilter
	consent
	group *string
	stop  bool // with group: the old one is stopped
	at    *int64
	from  *string
	late  bool // with from

	standard bool // with from: bring the keys of standard_keys too

	origin *origin // with -from
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
	From      *brought   `json:"from,omitempty"`
}

func cursorAdoptCommand() command {
	return command{
		name:    "cursor adopt",
		args:    "[-postgres URL] -scope S -topic T -partition N [-group G [-old-group-stopped]] [-at OFFSET | -from URL [-standard-keys] [-late]] -reason WHY [-yes]",
		summary: "resolve a halt: hand a cursor to another group, set its position, or take it over from another database",
		help: `
Resolves a halt, in one transaction: whoever owns the cursor is fenced out, the cursor is changed, and an audit row
says who did it and why. It shows what was and what will be, and asks first, unless -yes is given. A consumer that is
halted looks again every few seconds and goes on by itself.

Two services with one scope are a mistake: change Config.Scope of one of them. If a group was renamed, stop the old one, and then give -group; a cursor that the
old group has not let go is not handed over, unless -old-group-stopped says that its processes died.

Without -at only the group changes (halt "foreign-group"): the next owner stamps its own, or the one that -group
names. The position stays, and so does everything that proves that the log is the same.

With -at the position is set (halts "new-topic", "foreign-cluster", "truncated", "gap", "history-lost"): OFFSET is
the next that will be handled, in whichever topic of that name the next owner finds, and attempts begin anew. Offsets
between the old position and a higher OFFSET are never handled. With a lower one they are handled again: messages
with a key that is still kept are found to be duplicates, others are applied twice: "onlyonce replay" is the command that
handles messages again. Where there is no cursor -at makes one. It brings a retired cursor back, and it ends a replay.

With -from a partition moves here from another database (a shard; docs/scaling.md has the whole procedure). Its cursor
there must be retired, for less than keys are remembered there (else -late says that no copies can come any more), with nothing
parked that is not settled, and not paused. Position, group, cluster and topic are taken from it, and every key of consumer_keys that is
kept there is claimed here too, so that copies of what was applied there are found; all in one transaction. It can take as long as
the keys need (a million in seconds, or in a minute where the server is busy). -standard-keys brings those of standard_keys too, for
handlers that claim keys themselves (dedupe.Claim): only where such ids mean the same in both databases, because an order 17 of
each would be taken for one. The login needs the rights of a consumer here besides those of an operator.

If the last owner's group still runs, it may be the next one to come: stop it first, or give -group.

Example:
  onlyonce cursor adopt -scope stock -topic orders -partition 0 -at 1200 -reason "retention took 1100 to 1199, INC-7"
  onlyonce cursor adopt -postgres "$SHARD_B" -from "$SHARD_A" -scope stock -topic orders -partition 3 -reason "OPS-40"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			var ask adoption
			ask.cursorFilter.flags(fs)
			textVar(fs, &ask.group, "group", "the Kafka group `G` that is to own the cursor (default: the next one to come)")
			fs.BoolVar(&ask.stop, "old-group-stopped", false, "with -group: although the old group has not let the cursor go, because its processes died")
			numberVar(fs, &ask.at, "at", "the `OFFSET` that is to be handled next (default: the position stays)", 0, math.MaxInt64-1)
			textVar(fs, &ask.from, "from", "the database that the partition moves here from, as a `URL`; its cursor there is retired")
			fs.BoolVar(&ask.standard, "standard-keys", false, "with -from: bring the keys of standard_keys too")
			fs.BoolVar(&ask.late, "late", false, "with -from: although keys of what was handled there may be forgotten by now")
			ask.consent.flags(fs)
			return func(ctx context.Context, a *app) error { return a.adopt(ctx, *address, &ask) }
		},
	}
}

func (a *app) adopt(ctx context.Context, address string, ask *adoption) error {
	if err := ask.whole(&ask.consent); err != nil {
		return err
	}
	k := changeKind{action: "cursor adopt", subject: "the cursor", waiting: "waiting for the owner's batch to end", look: "onlyonce cursor show"}
	if ask.from != nil {
		if ask.at != nil {
			return usagef("-from and -at: the position is the other database's: give one of the two")
		}
		k.waiting, k.within = "bringing over the keys that are kept there", bringTimeout
		return a.withSchema(ctx, *ask.from, func(db *database) error {
			ask.origin = &origin{db: db, name: db.name, standard: ask.standard, late: ask.late}
			return a.adoptAs(ctx, address, k, ask)
		})
	}
	if ask.standard || ask.late {
		return usagef("-standard-keys and -late: only with -from")
	}
	return a.adoptAs(ctx, address, k, ask)
}

func (a *app) adoptAs(ctx context.Context, address string, k changeKind, ask *adoption) error {
	return change(ctx, a, address, k, ask.consent, ask, func(_ context.Context, _ *database, done *adopted, audit int64) error {
		_, _ = fmt.Fprintf(a.out, "Done: the next offset is %d; audit row %d. A halted consumer looks again within seconds.\n",
			done.After.Position, audit)
		return nil
	})
}

func (q *adoption) lock(ctx context.Context, tx pgx.Tx) error { return q.lockLease(ctx, tx) }

func (q *adoption) read(ctx context.Context, tx pgx.Tx) (*adopted, error) {
	before, err := q.readOne(ctx, tx)
	if err == nil && q.origin != nil {
		if err = q.readOrigin(ctx, before); err == nil {
			err = q.origin.scope.agrees(ctx, tx, q.scope, q.origin.name)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case before == nil && q.at == nil:
		return nil, usagef("there is no cursor (%s): correct the flags, or give -at OFFSET to make one", q.cursorFilter)
	case before != nil && before.RetiredAt != nil && q.at == nil:
		return nil, &refusal{"the cursor is retired, and nothing was done: -at OFFSET brings it back, from that offset on"}
	case before != nil && before.RetiredAt == nil && q.group != nil && before.Group != nil && *before.Group != *q.group && !before.Clean && !q.stop:
		return nil, &refusal{fmt.Sprintf("group %q has not let the cursor go, and nothing was done: if it is another service, give one of the two another Config.Scope; if it was renamed, stop its processes; if they died, say so with -old-group-stopped", *before.Group)}
	}
	return q.outcome(before, q.planned(before)), nil
}

// differs: the owner may go on working while the question stands; that matters where the position is to be set, and otherwise not.
func (q *adoption) differs(shown, now *adopted) bool {
	if q.origin != nil && shown.After.Position != now.After.Position {
		return true
	}
	if shown.Before == nil || now.Before == nil {
		return shown.Before != now.Before
	}
	return changed(shown.Before, now.Before) || (q.at != nil && shown.Before.Position != now.Before.Position)
}

func (q *adoption) do(ctx context.Context, tx pgx.Tx, now *adopted) (*adopted, error) {
	var err error
	if now.Before == nil {
		err = q.create(ctx, tx)
	} else {
		err = q.update(ctx, tx, now.Before)
	}
	if err != nil {
		return nil, err
	}
	var came *brought
	if q.origin != nil {
		made, err := q.readBack(ctx, tx)
		if err != nil {
			return nil, err
		}
		if came, err = q.origin.bring(ctx, tx, &q.cursorFilter, made.ID, q.group); err != nil {
			return nil, err
		}
	}
	after, err := q.readBack(ctx, tx)
	if err != nil {
		return nil, err
	}
	d := q.outcome(now.Before, after)
	if came != nil {
		d.From = came
	}
	return d, nil
}

// readOrigin takes the position from the cursor in the other database. What stands here must be out of use: a cursor that goes on here
// would be set back to where that one ended.
func (q *adoption) readOrigin(ctx context.Context, here *cursorRow) error {
	if here != nil && here.RetiredAt == nil {
		return &refusal{fmt.Sprintf("the cursor is in use here, at offset %d, and nothing was done: -from takes a partition over where it has no cursor, or a retired one", here.Position)}
	}
	if err := q.origin.snapshot(ctx, func(tx pgx.Tx) error { return q.origin.read(ctx, tx, &q.cursorFilter) }); err != nil {
		return err
	}
	there := q.origin.cursor
	if here != nil && stood(here) > there.Position {
		return &refusal{fmt.Sprintf("the cursor was retired here at offset %d, which is ahead of %d, where it stands in %s, and nothing was done: the partition was here after it had been there, and would be handled again. "+
			"Take it from where it was last; or, if the topic is another one by now, set the position yourself (cursor adopt -at)", stood(here), there.Position, q.origin.name)}
	}
	q.at = &there.Position
	return nil
}

func (q *adoption) update(ctx context.Context, tx pgx.Tx, before *cursorRow) error {
	if err := fence(ctx, tx, before); err != nil {
		return err
	}
	until, topic := redo(before)
	_, err := tx.Exec(ctx, adoptSQL, before.ID, q.group, q.at, until, topic)
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
		after := &cursorRow{Scope: *q.scope, Topic: *q.topic, Partition: int32(*q.partition), Position: *q.at, Group: q.group,
			StartOffset: *q.at, StartPolicy: "adopted", Clean: true}
		q.stamped(after)
		return after
	}
	after := *before
	after.Epoch++
	after.Group = q.group
	if q.at != nil {
		after.Position, after.Run = *q.at, before.Run+1
		after.ClusterID, after.TopicID, after.AnchorOffset, after.LeaderEpoch = nil, nil, nil, nil
		after.Attempts, after.AttemptOffset = 0, nil
		after.RetiredAt, after.ReplayUntil, after.ReplayResume, after.ReplayResend = nil, nil, nil, false
	}
	q.stamped(&after)
	return &after
}

// stamped is what comes with a position from another database.
func (q *adoption) stamped(after *cursorRow) {
	if q.origin == nil {
		return
	}
	there := q.origin.cursor
	if q.group == nil {
		after.Group = there.Group
	}
	after.ClusterID, after.TopicID, after.LeaderEpoch = there.ClusterID, there.TopicID, there.LeaderEpoch
	after.Replay = max(after.Replay, q.origin.replays)
}

// outcome puts before and after together. During a replay what counts as handled ends where the replay interrupted the work.
func (q *adoption) outcome(before, after *cursorRow) *adopted {
	d := &adopted{Scope: *q.scope, Topic: *q.topic, Partition: *q.partition, Before: before, After: after}
	if q.origin != nil {
		d.From = &brought{Database: q.origin.name, Cursor: q.origin.cursor}
		return d // what lies between is handled there
	}
	if before != nil {
		was := before.Position
		if q.at != nil {
			was = stood(before)
		}
		skipped, repeated := max(after.Position-was, 0), max(was-after.Position, 0)
		d.Skipped, d.Repeated = &skipped, &repeated
	}
	return d
}
