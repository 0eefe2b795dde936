package ops

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/cursor"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/internal/show"
)

// bringTimeout bounds an adoption from another database: it claims every key that is kept there.
const bringTimeout = 4 * time.Hour

// bringIdle is how long the server keeps the locks of an adoption that waits for rows of the other
// database. That one waits for as long as the whole takes.
const bringIdle = 10 * time.Minute

// idleSQL bounds how long a session may be idle in its transaction. In: the bound.
const idleSQL = `select set_config('idle_in_transaction_session_timeout', $1, true)`

// bringSlowly lets the sessions of an adoption wait for each other: while one of them works, the
// other one is idle in its transaction (F13).
func bringSlowly(ctx context.Context, there, tx pgx.Tx) error {
	if _, err := there.Exec(ctx, idleSQL, "0"); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, idleSQL, guard.Millis(bringIdle))
	return err
}

// bringBatch is how many keys are claimed by one statement.
const bringBatch = 10_000

// lastReplaySQL reads the number of the scope's last replay. In: scope. One row.
const lastReplaySQL = `select coalesce(max(replay_no), 0) from onlyonce.cursors where scope = $1`

// kept is a part of the other database's keys: the query that reads them there, and the one that
// claims them here. The first has no scope, because only hashes are stored: keys of other scopes
// come along. In, of the second: uuid[], bigint[] of the same length. One row: how many are new
// here, and how many are claimed here for another payload. It waits for transactions that hold
// uncommitted copies; keys that exist stay as they are.
type kept struct{ there, bring string }

// consumerKeys are of Kafka's messages, and mean the same in every database. otherKeys are of
// webhooks, calls outside of consumers and dedupe.Claim: their ids may have a meaning in their own
// database only. Both by class of horizon.
var consumerKeys, otherKeys = keptBy("consumer", ring.ConsumerClass), keptBy("standard", ring.StandardClass)

func keptBy(whose string, of func(class string) ring.Ring) map[string]kept {
	all := map[string]kept{}
	for _, class := range ring.Classes() {
		all[class] = kept{keptIn(of(class)), `
select count(*) filter (where o = 0), count(*) filter (where o = 2)
  from unnest(onlyonce.claim_class('` + class + `', $1, $2, '` + whose + `')) o`}
	}
	return all
}

// keptIn returns the query for the keys of a ring.
func keptIn(r ring.Ring) string {
	return `select key, fingerprint from onlyonce.inbox where segment = any ('{` + strings.ReplaceAll(
		strings.Join(r.Tables, ","),
		"onlyonce_segments.",
		"",
	) + `}')`
}

// forgottenSQL reports whether the keys of a cursor that was retired at a time may be forgotten.
// In: the time, the classes in whose rings its scope's keys are. One row.
const forgottenSQL = `
select coalesce(bool_or($1::timestamptz < clock_timestamp() - r.horizon), false)
  from unnest($2::text[]) c join onlyonce.rings r on r.name = onlyonce.class_ring(c)`

// Origin is the database from which a partition or a place moves. There the cursor must be retired,
// or the place must have left.
type Origin struct {
	// DB is the database.
	DB DB

	// Name names the database in errors, in onlyonce.places and in the audit row. It must not
	// contain a password.
	Name string

	// As is this database's name in LeavePlace, so that only the place's destination can adopt it.
	// Required for a place, and not used for a partition.
	As string

	// StandardKeys copies every key of standard_keys, standard_short_keys and standard_long_keys
	// too, with the classes of their scopes, and for a place the other state of webhooks. For a
	// place it must be true if the place has webhooks or a loop of its own, or if handlers claim
	// keys or enqueue calls under ids. Keys are hashes, so those of others come along: set it only
	// if such ids mean the same in both databases, for example because they contain the tenant.
	// Defaults to false.
	StandardKeys bool

	// Late takes the partition, or with StandardKeys the place, over even if the other database may
	// have forgotten keys of messages that it handled. Defaults to false.
	Late bool
}

// OriginError is an error of the database in Origin.
type OriginError struct {
	Name string
	Err  error
}

func (e *OriginError) Error() string {
	return e.Name + ": " + e.Err.Error() + ". Nothing was done, here or there: run the command again when " +
		"that database answers"
}

// Unwrap returns the error of the database.
func (e *OriginError) Unwrap() error { return e.Err }

// origin is the database that a partition comes from, and what was read there.
type origin struct {
	*Origin

	cursor  *Cursor   // as it was read last
	scope   *scopeRow // what ids mean there; nil: there are none
	replays int32
}

// read reads the cursor there, and refuses one that may still be in use, or whose partition has
// unfinished work (F13).
func (o *origin) read(ctx context.Context, tx pgx.Tx, f *CursorName) error {
	there, err := f.readOne(ctx, tx)
	switch {
	case err != nil:
		return err
	case there == nil:
		return failf(ErrNotFound, "`From`: there is no cursor (%s) in %s", *f, o.Name)
	case there.RetiredAt == nil:
		return failf(ErrRefused, "the cursor in %s is in use, at offset %d, and nothing was done: retire it "+
			"first (onlyonce cursor retire -postgres ...), so that no process works on both",
			o.Name, there.Position)
	case there.Paused != nil:
		return failf(
			ErrRefused,
			"it is paused in %s (%s), and nothing was done: a pause does not come "+
				"along. To keep it paused, pause it here (onlyonce cursor pause), and resume it there",
			o.Name,
			*there.Paused,
		)
	case there.ReplayUntil != nil:
		return failf(ErrRefused, "a replay is under way in %s, and nothing was done: bring that cursor back "+
			"(cursor adopt -at %d), let the replay end, and retire it again", o.Name, there.Position)
	}
	left, err := f.left(ctx, tx, nil, nil)
	if err != nil {
		return err
	}
	if left > 0 {
		return failf(
			ErrRefused,
			"%d messages of it are parked in %s and not settled, and nothing was done: no process would try "+
				"them again, and later ones would overtake them. "+
				"Discard them there, or bring that cursor back (cursor adopt -at %d), settle them, and retire it again",
			left,
			o.Name,
			there.Position,
		)
	}
	if o.scope, err = readScope(ctx, tx, f.Scope); err != nil {
		return err
	}
	var forgotten bool
	if err := tx.QueryRow(ctx, forgottenSQL, there.RetiredAt, o.scope.classes()).Scan(&forgotten); err != nil {
		return err
	}
	// The ring in which it claimed may have forgotten them, and the scope may have changed to a
	// longer class since (K10).
	forgotten = forgotten || o.scope != nil && o.scope.Forgotten != nil && !o.scope.Forgotten.Before(*there.RetiredAt)
	if forgotten && !o.Late {
		return failf(
			ErrRefused,
			"the cursor in %s was retired at %s, longer ago than keys are remembered there, and nothing was "+
				"done: copies of what it handled would be applied again. "+
				"If none can come any more, give -late",
			o.Name,
			show.Instant(*there.RetiredAt),
		)
	}
	o.cursor = there
	return tx.QueryRow(ctx, lastReplaySQL, f.Scope).Scan(&o.replays)
}

// lockKeysSQL keeps segments from being emptied until the transaction ends. A TRUNCATE shows
// through an older snapshot, which would then lack keys, and the time up to which they are
// forgotten (K9). LOCK takes no snapshot, so the first statement after it sees what was emptied
// before.
const lockKeysSQL = `set local lock_timeout = '10s'; lock table onlyonce.inbox in access share mode`

// snapshot runs f on one snapshot of the other database. If the cursor is retired in it, it has
// every key that the cursor's owners committed, because the retirement waited for their last batch.
func (o *origin) snapshot(ctx context.Context, f func(tx pgx.Tx) error) error {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, o.DB, options, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockKeysSQL, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		return reports.ReadIn(ctx, tx, f)
	})
	var known *Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	return &OriginError{o.Name, err}
}

// bring claims the other database's keys in tx, and stamps the cursor (F13, C7).
func (o *origin) bring(
	ctx context.Context,
	tx pgx.Tx,
	f *CursorName,
	id int64,
	run int32,
	group *string,
) (keys, conflicts int64, err error) {
	var done, hashes []int64
	err = o.snapshot(ctx, func(there pgx.Tx) error {
		if err := bringSlowly(ctx, there, tx); err != nil {
			return err
		}
		position := o.cursor.Position
		if err := o.read(ctx, there, f); err != nil {
			return err
		}
		if o.cursor.Position != position {
			return failf(ErrChanged, "the cursor in %s changed meanwhile, and nothing was done",
				o.Name).but("run the command again to see how it stands")
		}
		var err error
		if done, hashes, err = readDone(ctx, there, o.cursor); err != nil {
			return err
		}
		keys, conflicts, err = o.bringKeys(ctx, there, tx)
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	if err := o.bringScope(ctx, tx, f.Scope); err != nil {
		return 0, 0, err
	}
	c := o.cursor
	if group == nil {
		group = c.Group
	}
	until, topic := c.redo()
	if _, err = tx.Exec(
		ctx,
		cursor.StampSQL,
		id,
		group,
		c.ClusterID,
		topicID(c.TopicID),
		c.LeaderEpoch,
		o.replays,
	); err != nil {
		return 0, 0, err
	}
	if _, err = tx.Exec(ctx, cursor.RedoSQL, id, until, topic); err != nil {
		return 0, 0, err
	}
	_, err = tx.Exec(ctx, cursor.BringDoneSQL, id, run, codec.Bigints(done), codec.Bigints(hashes))
	return keys, conflicts, err
}

// bringKeys claims the keys of the scope's classes, and all others if the origin's were asked for.
func (o *origin) bringKeys(ctx context.Context, there, tx pgx.Tx) (keys, conflicts int64, err error) {
	claim := func(part kept) error {
		k, c, err := part.claim(ctx, there, tx)
		keys = keys + k
		conflicts = conflicts + c
		return err
	}
	for _, class := range ring.Classes() { // in the order of all claims, which excludes deadlocks
		if !slices.Contains(o.scope.classes(), class) {
			continue
		}
		if err := claim(consumerKeys[class]); err != nil {
			return 0, 0, err
		}
	}
	if !o.StandardKeys {
		return keys, conflicts, nil
	}
	if err := bringClasses(ctx, there, tx, o.Name); err != nil {
		return 0, 0, err
	}
	for _, class := range ring.Classes() {
		if err := claim(otherKeys[class]); err != nil {
			return 0, 0, err
		}
	}
	return keys, conflicts, nil
}

// bringScope makes the scope's row, unless there is one. That must agree with the origin's.
func (o *origin) bringScope(ctx context.Context, tx pgx.Tx, scope string) error {
	if err := o.scope.agrees(ctx, tx, scope, o.Name); err != nil || o.scope == nil {
		return err
	}
	_, err := tx.Exec(
		ctx, cursor.BringScopeSQL, scope, o.scope.Topics, o.scope.Copies, o.scope.FirstTopic,
		o.scope.Forgotten, o.scope.Class, o.scope.ClassBefore, o.scope.TooOld,
	)
	if err != nil {
		return err
	}
	// A consumer may have made the row meanwhile; from here on it is locked.
	return o.scope.agrees(ctx, tx, scope, o.Name)
}

// readDone reads what is done above the position of a cursor.
func readDone(ctx context.Context, tx pgx.Tx, c *Cursor) (offsets, hashes []int64, err error) {
	rows, _ := tx.Query(ctx, cursor.ReadDoneSQL, c.ID, c.Run, c.Position)
	var offset, hash int64
	_, err = pgx.ForEachRow(rows, []any{&offset, &hash}, func() error {
		offsets = append(offsets, offset)
		hashes = append(hashes, hash)
		return nil
	})
	return offsets, hashes, err
}

// claim claims a part of the other database's keys in tx. It returns how many are new here, and how
// many are here for another payload.
func (part kept) claim(ctx context.Context, there, tx pgx.Tx) (keys, conflicts int64, err error) {
	rows, err := there.Query(ctx, part.there)
	if err != nil {
		return 0, 0, err
	}
	defer rows.Close()
	hashes := make([][16]byte, 0, bringBatch)
	fingerprints := make([]int64, 0, bringBatch)
	bring := func() error {
		if len(hashes) == 0 {
			return nil
		}
		var k, c int64
		err := tx.QueryRow(ctx, part.bring, codec.UUIDs(hashes), codec.Bigints(fingerprints)).Scan(&k, &c)
		keys = keys + k
		conflicts = conflicts + c
		hashes = hashes[:0]
		fingerprints = fingerprints[:0]
		return err
	}
	for rows.Next() {
		var key pgtype.UUID
		var fingerprint int64
		if err := rows.Scan(&key, &fingerprint); err != nil {
			return keys, conflicts, err
		}
		hashes = append(hashes, key.Bytes)
		fingerprints = append(fingerprints, fingerprint)
		if len(hashes) == bringBatch {
			if err := bring(); err != nil {
				return keys, conflicts, err
			}
		}
	}
	if err := rows.Err(); err != nil {
		return keys, conflicts, err
	}
	err = bring()
	return keys, conflicts, err
}
