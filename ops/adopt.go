package ops

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/cursor"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/internal/show"
)

// bringTimeout bounds an adoption from another database: it claims every key that is kept there.
const bringTimeout = 4 * time.Hour

// bringBatch is how many keys are claimed by one statement.
const bringBatch = 10_000

// lastReplaySQL reads the number of the scope's last replay. In: scope. One row.
const lastReplaySQL = `select coalesce(max(replay_no), 0) from onlyonce.cursors where scope = $1`

// keys is a part of the other database's keys: the query that reads them there, and the one that
// claims them here. The first has no scope, because only hashes are stored: keys of other scopes
// come along. In, of the second: uuid[], bigint[] of the same length. One row: how many are new
// here, and how many are claimed here for another payload. It waits for transactions that hold
// uncommitted copies; keys that exist stay as they are.
type keys struct{ kept, bring string }

var (
	// consumerKeys are of Kafka's messages, by class of horizon, and mean the same in every
	// database.
	consumerKeys = func() map[string]keys {
		all := map[string]keys{}
		for _, class := range ring.Classes() {
			all[class] = keys{keptIn(ring.ConsumerClass(class)),
				`select count(*) filter (where o = 0), count(*) filter (where o = 2) from unnest(onlyonce.claim_class('` + class + `', $1, $2)) o`}
		}
		return all
	}()
	// standardKeys are of webhooks, calls outside of consumers and dedupe.Claim. Their ids may have
	// a meaning in their own database only.
	standardKeys = keys{keptIn(ring.StandardKeys()),
		`select count(*) filter (where o = 0), count(*) filter (where o = 2) from unnest(onlyonce.claim_standard($1, $2)) o`}
)

// keptIn returns the query for the keys of a ring.
func keptIn(r ring.Ring) string {
	return `select key, fingerprint from onlyonce.inbox where segment = any ('{` + strings.ReplaceAll(strings.Join(r.Tables, ","), "onlyonce.", "") + `}')`
}

// forgottenSQL reports whether the keys of a cursor that was retired at a time may be forgotten.
// In: the time, the classes in whose rings its scope's keys are. One row.
const forgottenSQL = `
select coalesce(bool_or($1::timestamptz < clock_timestamp() - r.horizon), false)
  from unnest($2::text[]) c join onlyonce.rings r on r.name = onlyonce.class_ring(c)`

// AdoptInput is the input of [AdoptCursor].
type AdoptInput struct {
	Place

	// Group is the Kafka group that is to own the cursor. Defaults to the next group that takes it;
	// with From, to the group of the other database.
	Group string

	// OldGroupStopped gives the cursor to Group although the old group has not released it, because
	// its processes died. Defaults to false.
	OldGroupStopped bool

	// At is the offset that is to be handled next. Defaults to the present position.
	At *int64

	// From is the database that the partition moves here from. It must be nil if At is set.
	// Defaults to no move.
	From *Origin

	// Shown is the result of a dry run with the same input that a person agreed to. If the cursor
	// has another owner or run by now, or with At another position, the error is of kind
	// ErrChanged.
	Shown *Adopted
}

// Origin is the database that a partition moves from. Its cursor there must be retired.
type Origin struct {
	// DB is the database.
	DB DB

	// Name names the database in errors and in the audit row. It must not hold a password.
	Name string

	// StandardKeys brings the keys of standard_keys too. Set it only if such ids mean the same in
	// both databases. Defaults to false.
	StandardKeys bool

	// Late takes the partition over even if keys of messages that were handled there may be
	// forgotten. Defaults to false.
	Late bool
}

// OriginError is an error of the database in Origin.
type OriginError struct {
	Name string
	Err  error
}

func (e *OriginError) Error() string { return e.Name + ": " + e.Err.Error() }

// Unwrap returns the error of the database.
func (e *OriginError) Unwrap() error { return e.Err }

// Check returns an error of kind ErrInvalid unless the fields go together.
func (in *AdoptInput) Check() error {
	if err := in.checkOne(); err != nil {
		return err
	}
	switch {
	case in.From != nil && in.At != nil:
		return failf(ErrInvalid, "-from and -at: the position is the other database's: give one of the two")
	case in.From != nil && (in.From.DB == nil || in.From.Name == ""):
		return failf(ErrInvalid, "-from: must have a database and a name")
	case in.At != nil && (*in.At < 0 || *in.At == math.MaxInt64):
		return failf(ErrInvalid, "-at: must be an offset")
	}
	if in.Group != "" {
		return checkText("the group", in.Group)
	}
	return nil
}

// Adopted is the result of [AdoptCursor].
type Adopted struct {
	Audited

	Scope     string   `json:"scope"`
	Topic     string   `json:"topic"`
	Partition int32    `json:"partition"`
	Before    *Cursor  `json:"before"` // nil: there was no cursor
	After     *Cursor  `json:"after"`
	Skipped   *int64   `json:"skipped"`  // nil: not known
	Repeated  *int64   `json:"repeated"` // nil: not known
	From      *Brought `json:"from,omitempty"`
}

// Brought is what came with a position from another database.
type Brought struct {
	Database  string  `json:"database"`
	Cursor    *Cursor `json:"cursor"`    // as it is there
	Keys      *int64  `json:"keys"`      // new here; nil: not brought yet
	Conflicts *int64  `json:"conflicts"` // are here for another payload, and stay so
}

// AdoptCursor resolves a halt. The owner of the cursor is fenced out. Then the cursor gets another
// group, or with At another position, or with From the state that it had in another database. A
// consumer that is halted checks again every few seconds and goes on by itself.
//
// Without At and From the position stays, with all that proves that the log is the same.
//
// With At a new run begins: cluster and topic are the next owner's. Offsets between the old
// position and a higher one are never handled, and those above a lower one are handled again. What
// was done above the position, because several transactions ran at once, stays done only if the
// position is not set back. At
// makes the cursor if there is none, brings a retired one back, and ends a replay.
//
// With From, position, group, cluster and topic come from the other database. Each key that is kept
// there in the ring of the scope's class is claimed here, so that copies of what was handled there
// are recognized.
//
// It waits for the owner's batch to end, and with From for as long as the keys take, at most 4
// hours. Errors are of kind ErrNotFound if there is no cursor, ErrRefused, ErrChanged, and
// ErrInvalid; those of the other database are an [*OriginError].
func AdoptCursor(ctx context.Context, db DB, by By, in AdoptInput) (*Adopted, error) {
	q := &adoption{AdoptInput: in, at: in.At}
	k := kind{action: "cursor adopt", subject: "the cursor", look: "onlyonce cursor show"}
	if in.From != nil {
		q.origin = &origin{Origin: in.From}
		k.within = bringTimeout
	}
	return decide(ctx, db, k, by, q, in.Shown)
}

// adoption is what is asked for, and what it becomes.
type adoption struct {
	AdoptInput
	at     *int64
	origin *origin // with From
}

func (q *adoption) check() error { return q.Check() }

func (q *adoption) lock(ctx context.Context, tx pgx.Tx) error { return q.lockLease(ctx, tx) }

func (q *adoption) read(ctx context.Context, tx pgx.Tx) (*Adopted, error) {
	before, err := q.readOne(ctx, tx)
	if err == nil && q.origin != nil {
		if err = q.readOrigin(ctx, before); err == nil {
			err = q.origin.scope.agrees(ctx, tx, q.Scope, q.origin.Name)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case before == nil && q.at == nil:
		return nil, failf(ErrNotFound, "there is no cursor (%s)", q.Place).but("correct the flags, or give -at OFFSET to make one")
	case before != nil && before.RetiredAt != nil && q.at == nil:
		return nil, failf(ErrRefused, "the cursor is retired, and nothing was done: -at OFFSET brings it back, from that offset on")
	case before != nil && before.RetiredAt == nil && q.Group != "" && before.Group != nil && *before.Group != q.Group && !before.Clean && !q.OldGroupStopped:
		return nil, failf(ErrRefused, "group %q has not let the cursor go, and nothing was done: if it is another service, give one of the two another Config.Scope; if it was renamed, stop its processes; if they died, say so with -old-group-stopped", *before.Group)
	}
	return q.outcome(before, q.planned(before)), nil
}

// differs reports whether the adoption would now be another one than was shown. The owner may go on
// working while the person decides; that counts only if the position is to be set.
func (q *adoption) differs(shown, now *Adopted) bool {
	if q.origin != nil && shown.After.Position != now.After.Position {
		return true
	}
	if shown.Before == nil || now.Before == nil {
		return shown.Before != now.Before
	}
	return shown.Before.changed(now.Before) || (q.at != nil && shown.Before.Position != now.Before.Position)
}

func (q *adoption) do(ctx context.Context, tx pgx.Tx, _ By, now *Adopted) (*Adopted, error) {
	var err error
	if now.Before == nil {
		err = q.create(ctx, tx)
	} else {
		err = q.update(ctx, tx, now.Before)
	}
	if err != nil {
		return nil, err
	}
	var came *Brought
	if q.origin != nil {
		made, err := q.readBack(ctx, tx)
		if err != nil {
			return nil, err
		}
		if came, err = q.origin.bring(ctx, tx, &q.Place, made.ID, made.Run, orNull(q.Group)); err != nil {
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

// readOrigin takes the position from the cursor in the other database. The cursor here must be out
// of use: otherwise it would be set back to the position at which that one ended.
func (q *adoption) readOrigin(ctx context.Context, here *Cursor) error {
	if here != nil && here.RetiredAt == nil {
		return failf(ErrRefused, "the cursor is in use here, at offset %d, and nothing was done: -from takes a partition over where it has no cursor, or a retired one", here.Position)
	}
	if err := q.origin.snapshot(ctx, func(tx pgx.Tx) error { return q.origin.read(ctx, tx, &q.Place) }); err != nil {
		return err
	}
	there := q.origin.cursor
	if here != nil && here.stood() > there.Position {
		return failf(ErrRefused, "the cursor was retired here at offset %d, which is ahead of %d, where it stands in %s, and nothing was done: the partition was here after it had been there, and would be handled again. "+
			"Take it from where it was last; or, if the topic is another one by now, set the position yourself (cursor adopt -at)", here.stood(), there.Position, q.origin.Name)
	}
	q.at = &there.Position
	return nil
}

func (q *adoption) update(ctx context.Context, tx pgx.Tx, before *Cursor) error {
	if err := before.fence(ctx, tx); err != nil {
		return err
	}
	until, topic := before.redo()
	if _, err := tx.Exec(ctx, cursor.AdoptSQL, before.ID, orNull(q.Group), q.at, until, topic); err != nil || q.at == nil {
		return err
	}
	keep := before.keepsDoneFrom(*q.at)
	if q.origin != nil {
		keep = nil // the other database's comes with the position
	}
	if _, err := tx.Exec(ctx, cursor.KeepDoneSQL, before.ID, before.ownRun(), before.Run+1, keep); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, cursor.ForgetAttemptsSQL, before.ID)
	return err
}

// create makes the cursor. If a lease without a cursor exists, it is used again, and its holder is
// fenced out.
func (q *adoption) create(ctx context.Context, tx pgx.Tx) error {
	var id int64
	err := tx.QueryRow(ctx, cursor.CreateSQL, q.Scope, q.Topic, q.Partition, orNull(q.Group), nil, nil, q.at, "adopted", nil).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return failf(ErrChanged, "a consumer made the cursor at this moment, and nothing was done").but("run the command again to see how it stands")
	}
	if err != nil {
		return err
	}
	made, err := q.readBack(ctx, tx)
	if err != nil || made.Epoch == 0 {
		return err
	}
	return made.fence(ctx, tx)
}

// planned returns the future cursor, to show before it is written.
func (q *adoption) planned(before *Cursor) *Cursor {
	if before == nil {
		after := &Cursor{Scope: q.Scope, Topic: q.Topic, Partition: q.Partition, Position: *q.at, Group: orNull(q.Group),
			StartOffset: *q.at, StartPolicy: "adopted", Clean: true}
		q.stamped(after)
		return after
	}
	after := *before
	after.Epoch++
	after.Group = orNull(q.Group)
	if q.at != nil {
		after.Position, after.Run = *q.at, before.Run+1
		after.ClusterID, after.TopicID, after.AnchorOffset, after.LeaderEpoch = nil, nil, nil, nil
		after.Attempts, after.AttemptOffset = 0, nil
		after.RetiredAt, after.ReplayUntil, after.ReplayResume, after.ReplayResend = nil, nil, nil, false
	}
	q.stamped(&after)
	return &after
}

// stamped adds what comes with a position from another database.
func (q *adoption) stamped(after *Cursor) {
	if q.origin == nil {
		return
	}
	there := q.origin.cursor
	if q.Group == "" {
		after.Group = there.Group
	}
	after.ClusterID, after.TopicID, after.LeaderEpoch = there.ClusterID, there.TopicID, there.LeaderEpoch
	after.Replay = max(after.Replay, q.origin.replays)
}

// outcome compares before and after. During a replay, what counts as handled ends at the offset at
// which the replay interrupted the work.
func (q *adoption) outcome(before, after *Cursor) *Adopted {
	d := &Adopted{Scope: q.Scope, Topic: q.Topic, Partition: q.Partition, Before: before, After: after}
	if q.origin != nil {
		d.From = &Brought{Database: q.origin.Name, Cursor: q.origin.cursor}
		return d // what is between was handled there
	}
	if before != nil {
		was := before.Position
		if q.at != nil {
			was = before.stood()
		}
		skipped, repeated := max(after.Position-was, 0), max(was-after.Position, 0)
		d.Skipped, d.Repeated = &skipped, &repeated
	}
	return d
}

// origin is the database that a partition comes from, and what was read there.
type origin struct {
	*Origin

	cursor  *Cursor   // as it was read last
	scope   *scopeRow // what ids mean there; nil: there are none
	replays int32
}

// read reads the cursor there, and refuses one that may still be in use, or whose partition has
// unfinished work.
func (o *origin) read(ctx context.Context, tx pgx.Tx, f *Place) error {
	there, err := f.readOne(ctx, tx)
	switch {
	case err != nil:
		return err
	case there == nil:
		return failf(ErrNotFound, "-from: there is no cursor (%s) in %s", *f, o.Name)
	case there.RetiredAt == nil:
		return failf(ErrRefused, "the cursor in %s is in use, at offset %d, and nothing was done: retire it first (onlyonce cursor retire -postgres ...), so that nobody works on both",
			o.Name, there.Position)
	case there.Paused != nil:
		return failf(ErrRefused, "it is paused in %s (%s), and nothing was done: a pause does not come along. Pause it here (onlyonce cursor pause), if it is to stand still on, and resume it there", o.Name, *there.Paused)
	case there.ReplayUntil != nil:
		return failf(ErrRefused, "a replay is under way in %s, and nothing was done: bring that cursor back (cursor adopt -at %d), let the replay end, and retire it again", o.Name, there.Position)
	}
	var left, waiting int64
	if err := tx.QueryRow(ctx, leftSQL, f.Scope, f.Topic, f.Partition, (*int64)(nil), (*int64)(nil)).Scan(&left, &waiting); err != nil {
		return err
	}
	if left > 0 {
		return failf(ErrRefused, "%d messages of it are parked in %s and not settled, and nothing was done: nobody would try them again, and later ones would overtake them. "+
			"Discard them there, or bring that cursor back (cursor adopt -at %d), settle them, and retire it again", left, o.Name, there.Position)
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
		return failf(ErrRefused, "the cursor in %s was retired at %s, longer ago than keys are remembered there, and nothing was done: copies of what it handled would be applied again. "+
			"If none can come any more, give -late", o.Name, show.Instant(*there.RetiredAt))
	}
	o.cursor = there
	return tx.QueryRow(ctx, lastReplaySQL, f.Scope).Scan(&o.replays)
}

// snapshot runs f on one snapshot of the other database. If the cursor is retired in it, it has
// every key that the cursor's owners committed, because the retirement waited for their last batch.
func (o *origin) snapshot(ctx context.Context, f func(tx pgx.Tx) error) error {
	err := snapshot(ctx, o.DB, f)
	var known *Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	return &OriginError{o.Name, err}
}

// bring claims the other database's keys in tx, and stamps the cursor.
func (o *origin) bring(ctx context.Context, tx pgx.Tx, f *Place, id int64, run int32, group *string) (*Brought, error) {
	b := &Brought{Database: o.Name, Keys: new(int64), Conflicts: new(int64)}
	var done, hashes []int64
	err := o.snapshot(ctx, func(there pgx.Tx) error {
		position := o.cursor.Position
		if err := o.read(ctx, there, f); err != nil {
			return err
		}
		if o.cursor.Position != position {
			return failf(ErrChanged, "the cursor in %s changed meanwhile, and nothing was done", o.Name).but("run the command again to see how it stands")
		}
		b.Cursor = o.cursor
		var err error
		if done, hashes, err = readDone(ctx, there, o.cursor); err != nil {
			return err
		}
		for _, class := range ring.Classes() { // in the order of all claims, which excludes deadlocks
			if !slices.Contains(o.scope.classes(), class) {
				continue
			}
			if err := b.claim(ctx, there, tx, consumerKeys[class]); err != nil {
				return err
			}
		}
		if !o.StandardKeys {
			return nil
		}
		return b.claim(ctx, there, tx, standardKeys)
	})
	if err == nil {
		err = o.scope.agrees(ctx, tx, f.Scope, o.Name)
	}
	if err == nil && o.scope != nil {
		_, err = tx.Exec(ctx, cursor.BringScopeSQL, f.Scope, o.scope.Topics, o.scope.Copies, o.scope.Home, o.scope.Forgotten,
			o.scope.Class, o.scope.ClassBefore)
		if err == nil { // a consumer may have made the row meanwhile; from here on it is locked
			err = o.scope.agrees(ctx, tx, f.Scope, o.Name)
		}
	}
	if err != nil {
		return nil, err
	}
	c := o.cursor
	if group == nil {
		group = c.Group
	}
	until, topic := c.redo()
	if _, err = tx.Exec(ctx, cursor.StampSQL, id, group, c.ClusterID, topicID(c.TopicID), c.LeaderEpoch, o.replays); err != nil {
		return nil, err
	}
	if _, err = tx.Exec(ctx, cursor.RedoSQL, id, until, topic); err != nil {
		return nil, err
	}
	_, err = tx.Exec(ctx, cursor.BringDoneSQL, id, run, codec.Bigints(done), codec.Bigints(hashes))
	return b, err
}

// readDone reads what is done above the position of a cursor.
func readDone(ctx context.Context, tx pgx.Tx, c *Cursor) (offsets, hashes []int64, err error) {
	rows, _ := tx.Query(ctx, cursor.ReadDoneSQL, c.ID, c.Run, c.Position)
	var offset, hash int64
	_, err = pgx.ForEachRow(rows, []any{&offset, &hash}, func() error {
		offsets, hashes = append(offsets, offset), append(hashes, hash)
		return nil
	})
	return offsets, hashes, err
}

// claim claims a part of the other database's keys in tx.
func (b *Brought) claim(ctx context.Context, there, tx pgx.Tx, part keys) error {
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

func (r *scopeRow) text() string {
	choice := "no choice"
	if r.Copies != nil {
		choice = *r.Copies
	}
	if r.Home == "" {
		return choice + ", begun with several topics"
	}
	return choice + ", begun with " + r.Home
}

func (r *scopeRow) classText() string {
	if r.ClassBefore != nil {
		return r.Class + " (" + *r.ClassBefore + " before)"
	}
	return r.Class
}

// agrees refuses to bring keys to a scope in which they would not be found, because ids have
// another meaning there (K8), or are looked for in another ring (K10).
func (r *scopeRow) agrees(ctx context.Context, tx pgx.Tx, scope, from string) error {
	here, err := readScope(ctx, tx, scope)
	if err != nil || here == nil || r == nil {
		return err
	}
	if here.Home != r.Home || here.Copies != nil && r.Copies != nil && *here.Copies != *r.Copies {
		return failf(ErrRefused, "ids of the scope do not mean here what they mean in %s (here: %s; there: %s), and nothing was done: keys that came along would not be found. "+
			"See onlyonce.scopes in both", from, here.text(), r.text())
	}
	if !slices.Equal(here.classes(), r.classes()) {
		return failf(ErrRefused, "keys of the scope are of class %s here and of class %s in %s, and nothing was done: keys that came along would not be found", here.classText(), r.classText(), from).
			but("give it the same class in both (onlyonce inbox class), and wait until the change is over in both")
	}
	return nil
}
