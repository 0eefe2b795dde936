package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/codec"
)

// bringTimeout bounds an adoption from another database: it claims every key that is kept there.
const bringTimeout = 4 * time.Hour

// bringBatch is how many keys are claimed by one statement.
const bringBatch = 10_000

// lastReplaySQL reads the number of the scope's last replay. In: scope. One row.
const lastReplaySQL = `select coalesce(max(replay_no), 0) from onlyonce.cursors where scope = $1`

// stampSQL carries over what the position means: whose it is, in which topic of which cluster, and the numbers of replays that are part
// of the keys which come with it. In: id, group, cluster, topic id, leader epoch below it (each null: not known), replay number, below where it may have been handled before (null: nowhere)
// and in which topic. By the primary key, under the lock on the lease.
const stampSQL = `
update onlyonce.cursors set group_id = $2, cluster_id = $3, topic_id = $4, run_epoch = $5, replay_no = greatest(replay_no, $6),
       redo_until = case when redo_topic_id <> $8::uuid then $7 else greatest(redo_until, $7) end, redo_topic_id = coalesce($8::uuid, redo_topic_id)
 where id = $1`

// keys is a part of what is kept there: the query that reads its keys, and the one that claims them here. The first names no scope, because hashes are all there is:
// keys of others come along. In, of the second: uuid[], bigint[] of the same length. One row: how many are new here, and how many stand here for another
// payload. It waits for transactions that hold uncommitted copies; keys that are there stay as they are.
type keys struct{ kept, bring string }

var (
	// logKeys are of Kafka's messages, and as true in one database as in the other.
	logKeys = keys{`select key, fingerprint from onlyonce.inbox where segment like 'keys\_log%'`,
		`select count(*) filter (where o = 0), count(*) filter (where o = 2) from unnest(onlyonce.claim_log($1, $2)) o`}
	// clockKeys are of webhooks, calls outside of consumers and dedupe.Claim, whose ids may mean something in their database only.
	clockKeys = keys{`select key, fingerprint from onlyonce.inbox where segment like 'keys\_clock%'`,
		`select count(*) filter (where o = 0), count(*) filter (where o = 2) from unnest(onlyonce.claim_clock($1, $2)) o`}
)

// forgottenSQL says whether the keys of a cursor that was retired at a time may be forgotten. In: the time. One row.
const forgottenSQL = `select coalesce($1::timestamptz < clock_timestamp() - horizon, false) from onlyonce.rings where name = 'keys_log'`

// origin is the database that a partition comes from.
type origin struct {
	db   *database
	name string

	clock bool // bring the keys of keys_clock too
	late  bool // although keys may be forgotten

	cursor  *cursorRow // as it was read last
	scope   *scopeRow  // what ids mean there; nil: there are none
	replays int32
}

// brought is what came with the position, a part of the audit row's detail.
type brought struct {
	Database  string     `json:"database"`
	Cursor    *cursorRow `json:"cursor"`
	Keys      *int64     `json:"keys"`      // new here; null: not brought yet
	Conflicts *int64     `json:"conflicts"` // stand here for another payload, and stay so
}

// read reads the cursor there, and refuses one that may still be worked on, or leaves something behind.
func (o *origin) read(ctx context.Context, tx pgx.Tx, f *cursorFilter) error {
	there, err := f.readOne(ctx, tx)
	switch {
	case err != nil:
		return err
	case there == nil:
		return usagef("-from: there is no cursor (%s) in %s", *f, o.name)
	case there.RetiredAt == nil:
		return &refusal{fmt.Sprintf("the cursor in %s is in use, at offset %d, and nothing was done: retire it first (onlyonce cursor retire -postgres ...), so that nobody works on both",
			o.name, there.Position)}
	case there.Paused != nil:
		return &refusal{fmt.Sprintf("it is paused in %s (%s), and nothing was done: a pause does not come along. Pause it here (onlyonce cursor pause), if it is to stand still on, and resume it there", o.name, *there.Paused)}
	case there.ReplayUntil != nil:
		return &refusal{fmt.Sprintf("a replay is under way in %s, and nothing was done: bring that cursor back (cursor adopt -at %d), let the replay end, and retire it again", o.name, there.Position)}
	}
	var left, waiting int64
	if err := tx.QueryRow(ctx, leftSQL, f.scope, f.topic, f.partition, (*int64)(nil), (*int64)(nil)).Scan(&left, &waiting); err != nil {
		return err
	}
	if left > 0 {
		return &refusal{fmt.Sprintf("%d messages of it are parked in %s and not settled, and nothing was done: nobody would try them again, and later ones would overtake them. "+
			"Discard them there, or bring that cursor back (cursor adopt -at %d), settle them, and retire it again", left, o.name, there.Position)}
	}
	var forgotten bool
	if err := tx.QueryRow(ctx, forgottenSQL, there.RetiredAt).Scan(&forgotten); err != nil {
		return err
	}
	if forgotten && !o.late {
		return &refusal{fmt.Sprintf("the cursor in %s was retired at %s, longer ago than keys are remembered there, and nothing was done: copies of what it handled would be applied again. "+
			"If none can come any more, give -late", o.name, instant(*there.RetiredAt))}
	}
	o.cursor = there
	if o.scope, err = readScope(ctx, tx, f.scope); err != nil {
		return err
	}
	return tx.QueryRow(ctx, lastReplaySQL, f.scope).Scan(&o.replays)
}

// snapshot runs f on one snapshot of the other database: one in which the cursor is retired has every key that its owners committed, because
// the retirement waited for their last batch.
func (o *origin) snapshot(ctx context.Context, f func(tx pgx.Tx) error) error {
	return o.db.explain(pgx.BeginTxFunc(ctx, o.db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f))
}

// bring claims the other database's keys in tx, and stamps the cursor.
func (o *origin) bring(ctx context.Context, tx pgx.Tx, f *cursorFilter, id int64, group *string) (*brought, error) {
	b := &brought{Database: o.name, Keys: new(int64), Conflicts: new(int64)}
	err := o.snapshot(ctx, func(there pgx.Tx) error {
		position := o.cursor.Position
		if err := o.read(ctx, there, f); err != nil {
			return err
		}
		if o.cursor.Position != position {
			return &refusal{"the cursor in " + o.name + " changed meanwhile, and nothing was done: run the command again to see how it stands"}
		}
		b.Cursor = o.cursor
		if err := b.claim(ctx, there, tx, logKeys); err != nil || !o.clock {
			return err
		}
		return b.claim(ctx, there, tx, clockKeys)
	})
	if err == nil {
		err = o.scope.agrees(ctx, tx, f.scope, o.name)
	}
	if err == nil && o.scope != nil {
		_, err = tx.Exec(ctx, joinScopeSQL, f.scope, o.scope.Topics, o.scope.Copies, o.scope.Home)
	}
	if err != nil {
		return nil, err
	}
	c := o.cursor
	if group == nil {
		group = c.Group
	}
	until, topic := redo(c)
	_, err = tx.Exec(ctx, stampSQL, id, group, c.ClusterID, topicID(c.TopicID), c.LeaderEpoch, o.replays, until, topic)
	return b, err
}

// claim claims a part of what is kept there in tx.
func (b *brought) claim(ctx context.Context, there, tx pgx.Tx, part keys) error {
	rows, err := there.Query(ctx, part.kept)
	if err != nil {
		return err
	}
	defer rows.Close()
	hashes, fingerprints := make([][16]byte, 0, bringBatch), make([]int64, 0, bringBatch)
	bring := func() error {
		if len(hashes) == 0 {
			return nil
		}
		var fresh, conflicts int64
		err := tx.QueryRow(ctx, part.bring, codec.UUIDs(hashes), codec.Bigints(fingerprints)).Scan(&fresh, &conflicts)
		*b.Keys, *b.Conflicts = *b.Keys+fresh, *b.Conflicts+conflicts
		hashes, fingerprints = hashes[:0], fingerprints[:0]
		return err
	}
	for rows.Next() {
		var key pgtype.UUID
		var fingerprint int64
		if err := rows.Scan(&key, &fingerprint); err != nil {
			return err
		}
		hashes, fingerprints = append(hashes, key.Bytes), append(fingerprints, fingerprint)
		if len(hashes) == bringBatch {
			if err := bring(); err != nil {
				return err
			}
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return bring()
}

// topicID is the id in the form that goes back into its column.
func topicID(text *string) (id pgtype.UUID) {
	if text != nil {
		_ = id.Scan(*text) // it comes from a column of that type
	}
	return id
}
