package ops

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/cursor"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/reports"
)

// AdoptInput is the input of [AdoptCursor].
type AdoptInput struct {
	// Scope and Topic name the cursors. Both are required.
	Scope string
	Topic string

	// Partition is the number of the partition. Nil picks all partitions of the topic that are in
	// use: those of Halted, or else those that do not have Group yet. Defaults to nil.
	Partition *int32

	// Halted picks the partitions that living processes report as halted for this reason, for
	// example new-topic. Partition must be nil then. Defaults to any.
	Halted string

	// Group is the Kafka group to own the cursor. Required if Partition is nil and At is empty.
	// Defaults to the next group that takes it; with From, to the group of the other database.
	Group string

	// OldGroupStopped gives the cursor to Group although the old group has not released it, because
	// its processes died. Defaults to false.
	OldGroupStopped bool

	// At is the next offset to handle. With Halted it may also be "position", for each cursor's
	// own, or "first" or "last", for the beginning or the end of its log as the partition's owner
	// has reported them. Defaults to the present position, with the proofs that the log is the
	// same.
	At string

	// From is the database from which the partition moves here. At must be empty then. Defaults to
	// no move.
	From *Origin

	// Shown is the result of a dry run with the same input that a person agreed to. If a cursor has
	// another owner or run by now, or, with Partition and At, another position, the error is of
	// kind ErrChanged.
	Shown *CursorChange
}

// Check returns an error of kind ErrInvalid unless the fields go together.
func (in *AdoptInput) Check() error {
	one := CursorName{Scope: in.Scope, Topic: in.Topic}
	if in.Partition != nil {
		one.Partition = *in.Partition
	}
	if err := one.checkOne(); err != nil {
		return err
	}
	if _, err := in.at(0, &OwnedPartition{}); err != nil {
		return err
	}
	switch {
	case in.From != nil && in.At != "":
		return failf(ErrInvalid, "`From` and `At`: the position is the other database's: give one of the two")
	case in.From != nil && in.Partition == nil:
		return failf(ErrInvalid, "missing: `Partition`: one partition at a time moves here from another database")
	case in.Partition != nil && in.Halted != "":
		return failf(ErrInvalid, "`Halted` and `Partition`: give one of the two")
	case in.Partition == nil && in.At != "" && in.Halted == "":
		return failf(ErrInvalid, "missing: `Partition` or `Halted`: a position is set for one partition, or "+
			"for those that are halted for one reason")
	case in.Partition == nil && in.At == "" && in.Group == "":
		return failf(ErrInvalid, "missing: `Partition`, or `Group` for all partitions of the topic")
	case in.Halted == "" && slices.Contains([]string{atPosition, atFirst, atLast}, in.At):
		return failf(ErrInvalid, "`At` %s: only with `Halted`", in.At)
	case in.Group != "":
		return checkText("the group", in.Group)
	}
	return nil
}

const (
	atPosition = "position"
	atFirst    = "first"
	atLast     = "last"
)

// at is the offset that a partition is set to, nil if its position stays.
func (in *AdoptInput) at(position int64, p *OwnedPartition) (*int64, error) {
	switch in.At {
	case "":
		return nil, nil
	case atPosition:
		return &position, nil
	case atFirst:
		return &p.LogStart, nil
	case atLast:
		return &p.HighWatermark, nil
	}
	n, err := strconv.ParseInt(in.At, 10, 64)
	if err != nil || n < 0 || n == math.MaxInt64 {
		return nil, failf(ErrInvalid, "`At` must be an offset; with `Halted` also first, last or position")
	}
	return &n, nil
}

// CursorChange is the result of [AdoptCursor] and [RetireCursor]: of one partition, or of each of
// several.
type CursorChange struct {
	Audited

	Scope     string  `json:"scope"`
	Topic     string  `json:"topic"`
	Partition *int32  `json:"partition,omitempty"` // nil: see Partitions
	Before    *Cursor `json:"before,omitempty"`    // nil: there was no cursor
	After     *Cursor `json:"after,omitempty"`     // nil: see Partitions
	Skipped   *int64  `json:"skipped,omitempty"`   // of an adoption; nil: not known
	Repeated  *int64  `json:"repeated,omitempty"`  // of an adoption; nil: not known
	// Parked is how many messages are parked and not settled: for a retirement all of the
	// partition's, for an adoption those from a lower position on. They are not handled again, and
	// wait as before.
	Parked *int64 `json:"parked,omitempty"`
	// From is what came with the position from another database. Nil: it did not move here.
	From       *MovedFrom     `json:"from,omitempty"`
	Partitions []CursorChange `json:"partitions,omitempty"` // by topic and number
}

// MovedFrom is what came with a position from another database.
type MovedFrom struct {
	Database  string  `json:"database"`
	Cursor    *Cursor `json:"cursor"`    // as it is there
	Keys      *int64  `json:"keys"`      // new here; nil: not brought yet
	Conflicts *int64  `json:"conflicts"` // are here for another payload, and stay so
}

// AdoptCursor resolves a halt. It fences out the cursor's owner. Then it gives the cursor another
// group, with At another position, or with From its state from another database. A halted consumer
// checks again every few seconds and continues by itself.
//
// Without Partition it adopts partitions of a topic, in one transaction: for example if a group was
// renamed and each partition is halted for the reason foreign-group, or if the topic was created
// again and each is halted for new-topic. Cursors that are retired stay as they are.
//
// Without At and From the position stays, with the proofs that the log is the same.
//
// With At a new run begins: cluster and topic are the next owner's. Offsets between the old
// position and a higher one are never handled, and those above a lower one are handled again. If
// several transactions ran at once, messages above the position that they have handled stay done as
// far as the log still has them, unless the position is set back. Messages that are parked and not
// settled are passed over, and wait as before. At creates a missing cursor, brings a retired one
// back, and ends a replay.
//
// With From, position, group, cluster and topic come from the other database. AdoptCursor claims
// here each key that the other database keeps in the ring of the scope's class, so copies of
// messages handled there are recognized.
//
// It waits for the owners' batches to end, and with From until the keys are copied, at most 4
// hours. Errors are of kind ErrNotFound if there is no such cursor, ErrNothing if all partitions
// have the group, ErrRefused, ErrChanged, and ErrInvalid; those of the other database are an
// [*OriginError].
func AdoptCursor(ctx context.Context, db DB, by By, in AdoptInput) (*CursorChange, error) {
	k := kind{action: "cursor adopt", subject: "the cursor", look: "onlyonce cursor show"}
	if in.Partition == nil {
		k.subject = "one of the cursors"
		all := &cursors{at: CursorName{Scope: in.Scope, Topic: in.Topic}, valid: in.Check, pick: in.pick}
		return decide(ctx, db, k, by, all, in.Shown)
	}
	at, _ := in.at(0, &OwnedPartition{}) // check reports its error
	q := &adoption{AdoptInput: in, name: CursorName{Scope: in.Scope, Topic: in.Topic, Partition: *in.Partition}, at: at}
	if in.From != nil {
		q.origin = &origin{Origin: in.From}
		k.within = bringTimeout
	}
	return decide(ctx, db, k, by, q, in.Shown)
}

// adoption is the adoption of one cursor, and what it becomes.
type adoption struct {
	AdoptInput
	name   CursorName
	at     *int64
	origin *origin // with From
}

func (q *adoption) check() error {
	if q.From != nil && (q.From.DB == nil || q.From.Name == "") {
		return failf(ErrInvalid, "`From`: must have a database and a name")
	}
	return q.Check()
}

func (q *adoption) lock(ctx context.Context, tx pgx.Tx) error { return q.name.lockLease(ctx, tx) }

// mayRun reports whether another group may still work on the cursor: it has not handed it over, and
// nobody has said that its processes died.
func (q *adoption) mayRun(before *Cursor) bool {
	if before == nil || before.RetiredAt != nil || before.Group == nil {
		return false
	}
	other := q.Group != "" && *before.Group != q.Group
	return other && !before.Clean && !q.OldGroupStopped
}

func (q *adoption) read(ctx context.Context, tx pgx.Tx) (*CursorChange, error) {
	before, err := q.name.readOne(ctx, tx)
	if err == nil && q.origin != nil {
		if err = q.readOrigin(ctx, before); err == nil {
			err = q.origin.scope.agrees(ctx, tx, q.Scope, q.origin.Name)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case before == nil && q.at == nil:
		return nil, failf(ErrNotFound, "there is no cursor (%s)", q.name).but("correct the flags, or give " +
			"-at OFFSET to make one")
	case before != nil && before.RetiredAt != nil && q.at == nil:
		return nil, failf(ErrRefused, "the cursor is retired, and nothing was done: -at OFFSET brings it "+
			"back, from that offset on")
	case q.mayRun(before):
		return nil, failf(
			ErrRefused,
			"group %q has not let the cursor go, and nothing was done: "+
				"if it is another service, give one of the two another Config.Scope; "+
				"if it was renamed, stop its processes; if they died, say so with -old-group-stopped",
			*before.Group,
		)
	}
	d := q.outcome(before, q.planned(before))
	if d.Repeated != nil && *d.Repeated > 0 {
		left, err := q.name.left(ctx, tx, q.at, nil)
		if err != nil {
			return nil, err
		}
		d.Parked = &left
	}
	return d, nil
}

// differs reports whether the adoption would now be another one than was shown. The owner may go on
// working while the person decides; that counts only if the position is to be set.
func (q *adoption) differs(shown, now *CursorChange) bool {
	if q.origin != nil && shown.After.Position != now.After.Position {
		return true
	}
	if shown.Before == nil || now.Before == nil {
		return shown.Before != now.Before
	}
	return shown.Before.changed(now.Before) || (q.at != nil && shown.Before.Position != now.Before.Position)
}

func (q *adoption) do(ctx context.Context, tx pgx.Tx, _ By, now *CursorChange) (*CursorChange, error) {
	var err error
	if now.Before == nil {
		err = q.create(ctx, tx)
	} else {
		err = q.update(ctx, tx, now.Before)
	}
	if err != nil {
		return nil, err
	}
	var keys, conflicts int64
	if q.origin != nil {
		made, err := q.name.readBack(ctx, tx)
		if err != nil {
			return nil, err
		}
		if keys, conflicts, err = q.origin.bring(
			ctx,
			tx,
			&q.name,
			made.ID,
			made.Run,
			reports.OrNull(q.Group),
		); err != nil {
			return nil, err
		}
	}
	after, err := q.name.readBack(ctx, tx)
	if err != nil {
		return nil, err
	}
	d := q.outcome(now.Before, after)
	d.Parked = now.Parked
	if q.origin != nil {
		d.From.Keys = &keys
		d.From.Conflicts = &conflicts
	}
	return d, nil
}

// readOrigin takes the position from the cursor in the other database. The cursor here must be out
// of use: otherwise it would be set back to the position at which that one ended (F13).
func (q *adoption) readOrigin(ctx context.Context, here *Cursor) error {
	if here != nil && here.RetiredAt == nil {
		return failf(ErrRefused, "the cursor is in use here, at offset %d, and nothing was done: -from "+
			"takes a partition over where it has no cursor, or a retired one", here.Position)
	}
	if err := q.origin.snapshot(ctx, func(tx pgx.Tx) error { return q.origin.read(ctx, tx, &q.name) }); err != nil {
		return err
	}
	there := q.origin.cursor
	if here != nil && here.stood() > there.Position {
		return failf(
			ErrRefused,
			"the cursor was retired here at offset %d, which is ahead of %d, its offset in %s, and nothing "+
				"was done: the partition was here after it had been there, and messages would be handled "+
				"again. Take it from the database where it was last; or, if the topic is another one by now, "+
				"set the position yourself (cursor adopt -at)",
			here.stood(),
			there.Position,
			q.origin.Name,
		)
	}
	q.at = &there.Position
	return nil
}

func (q *adoption) update(ctx context.Context, tx pgx.Tx, before *Cursor) error {
	if err := before.fence(ctx, tx); err != nil {
		return err
	}
	until, topic := before.redo()
	if _, err := tx.Exec(
		ctx,
		cursor.AdoptSQL,
		before.ID,
		reports.OrNull(q.Group),
		q.at,
		until,
		topic,
		before.ownRun(),
	); err != nil ||
		q.at == nil {
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
	err := tx.QueryRow(
		ctx,
		cursor.CreateSQL,
		q.Scope,
		q.Topic,
		q.name.Partition,
		reports.OrNull(q.Group),
		nil,
		nil,
		q.at,
		"adopted",
		nil,
		names.Cursor(q.Scope, q.Topic, q.name.Partition).String(),
	).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return failf(ErrChanged, "a consumer made the cursor at this moment, and nothing was done").
			but("run the command again to see how it stands")
	}
	if err != nil {
		return err
	}
	made, err := q.name.readBack(ctx, tx)
	if err != nil || made.Epoch == 0 {
		return err
	}
	return made.fence(ctx, tx)
}

// planned returns the future cursor, to show before it is written.
func (q *adoption) planned(before *Cursor) *Cursor {
	if before == nil {
		after := &Cursor{
			Scope:       q.Scope,
			Topic:       q.Topic,
			Partition:   q.name.Partition,
			Position:    *q.at,
			Group:       reports.OrNull(q.Group),
			StartOffset: *q.at,
			StartPolicy: "adopted",
			Clean:       true,
		}
		q.stamped(after)
		return after
	}
	after := *before
	after.Epoch++
	after.Group = reports.OrNull(q.Group)
	if q.at != nil {
		after.Position = *q.at
		after.Run = before.Run + 1
		after.ClusterID = nil
		after.TopicID = nil
		after.AnchorOffset = nil
		after.LeaderEpoch = nil
		after.Attempts = 0
		after.AttemptOffset = nil
		after.RetiredAt = nil
		after.ReplayUntil = nil
		after.ReplayResume = nil
		after.ReplayResend = false
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
	after.ClusterID = there.ClusterID
	after.TopicID = there.TopicID
	after.LeaderEpoch = there.LeaderEpoch
	after.Replay = max(after.Replay, q.origin.replays)
}

// outcome compares before and after. During a replay, what counts as handled ends at the offset at
// which the replay interrupted the work.
func (q *adoption) outcome(before, after *Cursor) *CursorChange {
	d := &CursorChange{Scope: q.Scope, Topic: q.Topic, Partition: &q.name.Partition, Before: before, After: after}
	if q.origin != nil {
		from := fresh(&d.From)
		from.Database = q.origin.Name
		from.Cursor = q.origin.cursor
		return d // what is between was handled there
	}
	if before != nil {
		was := before.Position
		if q.at != nil {
			was = before.stood()
		}
		skipped := max(after.Position-was, 0)
		repeated := max(was-after.Position, 0)
		d.Skipped = &skipped
		d.Repeated = &repeated
	}
	return d
}
