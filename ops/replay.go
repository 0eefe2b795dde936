package ops

import (
	"context"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/cursor"
)

// ReplayInput is the input of [Replay].
type ReplayInput struct {
	CursorName

	// From is the first offset to handle again, and To the first after the range, at most the
	// position. To defaults to the position, or with Shown to the shown one.
	From int64
	To   int64

	// Ranges are the ranges of several partitions of Topic, or of the scope if Topic is empty. They
	// become one replay. Partition must then be -1, and From and To 0. Defaults to none: the range
	// of Partition.
	Ranges []ReplayRange

	// Resend gives new keys to calls that the replay enqueues: remotes apply them again. Defaults
	// to false.
	Resend bool

	// Shown is the result of a dry run with the same input that a person agreed to. If the cursor
	// has another owner or run by now, the error is of kind ErrChanged.
	Shown *Replayed
}

// Check returns an error of kind ErrInvalid unless the fields go together.
func (in *ReplayInput) Check() error {
	if len(in.Ranges) > 0 {
		return in.checkSeveral()
	}
	if err := in.checkOne(); err != nil {
		return err
	}
	switch {
	case in.From < 0 || in.From == math.MaxInt64:
		return failf(ErrInvalid, "`From`: must be an offset")
	case in.To != 0 && in.To <= in.From:
		return failf(ErrInvalid, "`To`: must be above `From`, %d: it is the first offset that is not handled again",
			in.From)
	}
	return nil
}

// Replayed is the result of [Replay].
type Replayed struct {
	Audited

	Scope     string `json:"scope"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition" doc:"-1: see partitions"`
	From      int64  `json:"from"`
	To        int64  `json:"to" doc:"the first offset that is not handled again"`
	Resume    int64  `json:"resume" doc:"where the work then goes on"`
	Replay    int32  `json:"replay" doc:"its number, which is part of the keys that its messages claim"`
	Resend    bool   `json:"resend"`
	// messages of the range that are parked and not settled: the replay passes over them
	Parked int64   `json:"parked" doc:"above"`
	Before *Cursor `json:"before"` // nil: see Partitions
	After  *Cursor `json:"after"`  // nil: see Partitions

	Partitions []Replayed `json:"partitions,omitempty" doc:"of a replay of several, by topic and number"`
}

// Replay makes a consumer handle and apply a range of offsets again although it is done. Use it,
// for example, if a handler was wrong and its effects were undone.
//
// It fences out the owner, sets the position back, and numbers the replay. Copies within the range
// are applied once. If the original of a copy is outside of the range, the copy is applied although
// the original was not undone. Then the consumer continues from where it was interrupted; new
// messages wait until then.
//
// With Ranges it does that with several partitions in one transaction. Their replay has one number,
// so copies within the ranges are applied once, also copies in different partitions.
//
// It waits for the owner's batch to end. Errors are of kind ErrNotFound if there is no such cursor,
// ErrRefused if it is retired, if a replay is under way, if the range is not handled yet, and
// ErrChanged.
func Replay(ctx context.Context, db DB, by By, in ReplayInput) (*Replayed, error) {
	k := kind{action: "replay", subject: "the cursor", look: "onlyonce cursor show"}
	if len(in.Ranges) > 0 {
		k.subject = "one of the cursors"
		return decide(ctx, db, k, by, newReplays(in), in.Shown)
	}
	q := &replay{ReplayInput: in}
	return decide(ctx, db, k, by, q, in.Shown)
}

type replay struct{ ReplayInput }

func (q *replay) check() error { return q.Check() }

func (q *replay) lock(ctx context.Context, tx pgx.Tx) error {
	if err := q.lockLease(ctx, tx); err != nil {
		return err
	}
	// Last: it is another partition's too, and must not wait for this one's owner (T14).
	_, err := tx.Exec(ctx, cursor.LockReplaysSQL, q.Scope)
	return err
}

func (q *replay) read(ctx context.Context, tx pgx.Tx) (*Replayed, error) {
	before, err := q.readThere(ctx, tx)
	if err != nil {
		return nil, err
	}
	d := &Replayed{
		Scope:     q.Scope,
		Topic:     q.Topic,
		Partition: q.Partition,
		From:      q.From,
		To:        before.Position,
		Resume:    before.Position,
		Resend:    q.Resend,
		Before:    before,
	}
	switch {
	case before.RetiredAt != nil:
		return nil, failf(ErrRefused, "the cursor is retired, and nothing was done: `onlyonce cursor adopt "+
			"-at OFFSET` brings it back")
	case before.ReplayUntil != nil:
		return nil, failf(ErrRefused, "replay %d is under way, at offset %d of up to %d, and nothing was "+
			"done: wait until it has ended, or end it with `onlyonce cursor adopt -at %d`",
			before.Replay, before.Position, *before.ReplayUntil, *before.ReplayResume)
	case q.To != 0:
		d.To = q.To
	case q.Shown != nil:
		d.To = q.Shown.To // the owner may have gone on since: the person agreed to this much
	}
	switch {
	case d.From >= before.Position:
		return nil, failf(ErrRefused, "`From`: offset %d was not handled yet, and nothing was done: the position is %d",
			d.From, before.Position)
	case d.To > before.Position:
		return nil, failf(ErrRefused, "`To`: must not be above the position, %d, and nothing was done: "+
			"later messages are handled anyway", before.Position)
	}
	if d.Parked, err = q.left(ctx, tx, &d.From, &d.To); err != nil {
		return nil, err
	}
	if err := tx.QueryRow(ctx, cursor.ReplayNoSQL, q.Scope).Scan(&d.Replay); err != nil {
		return nil, err
	}
	after := *before
	after.Epoch = before.Epoch + 1
	after.Run = before.Run + 1
	after.Position = d.From
	after.Replay = d.Replay
	after.ReplayUntil = &d.To
	after.ReplayResume = &d.Resume
	after.ReplayResend = d.Resend
	after.AnchorOffset = nil
	after.AttemptOffset = nil
	after.Attempts = 0
	d.After = &after
	return d, nil
}

func (q *replay) differs(shown, now *Replayed) bool { return shown.Before.changed(now.Before) }

func (q *replay) do(ctx context.Context, tx pgx.Tx, _ By, now *Replayed) (*Replayed, error) {
	if err := now.Before.fence(ctx, tx); err != nil {
		return nil, err
	}
	if _, err := tx.Exec(
		ctx, cursor.ReplaySQL, now.Before.ID, now.From, now.To, now.Resume, now.Replay, now.Resend,
		now.Before.LeaderEpoch,
	); err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, cursor.ForgetAttemptsSQL, now.Before.ID); err != nil {
		return nil, err
	}
	var err error
	now.After, err = q.readBack(ctx, tx)
	return now, err
}
