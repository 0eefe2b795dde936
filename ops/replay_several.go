package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/cursor"
)

// ReplayRange is the range of one partition in a replay of several.
type ReplayRange struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	From      int64  `json:"from"` // the first offset to handle again
	To        int64  `json:"to"`   // the first that is not. 0: the position
}

// replays is one replay of ranges of several partitions, in one transaction and with one number. So
// copies of a message within the ranges are applied once, also if they are in several partitions.
type replays struct {
	ReplayInput
	each []*replay // by topic and partition
}

// newReplays copies the ranges, so that the caller's stay in their order.
func newReplays(in ReplayInput) *replays {
	q := &replays{ReplayInput: in}
	ranges := slices.SortedFunc(slices.Values(in.Ranges), func(a, b ReplayRange) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	for i, r := range ranges {
		one := ReplayInput{
			CursorName: CursorName{Scope: in.Scope, Topic: r.Topic, Partition: r.Partition},
			From:       r.From,
			To:         r.To,
			Resend:     in.Resend,
		}
		if in.Shown != nil && i < len(in.Shown.Partitions) {
			one.Shown = &in.Shown.Partitions[i]
		}
		q.each = append(q.each, &replay{one})
	}
	return q
}

func (q *replays) check() error { return q.checkSeveral() }

// checkSeveral is Check for ranges.
func (in *ReplayInput) checkSeveral() error {
	if in.Partition != -1 || in.From != 0 || in.To != 0 {
		return failf(ErrInvalid, "`Ranges`: not with `Partition`, `From` and `To`")
	}
	if err := in.CursorName.check(); err != nil {
		return err
	}
	seen := map[CursorName]bool{}
	for _, r := range in.Ranges {
		one := ReplayInput{
			CursorName: CursorName{Scope: in.Scope, Topic: r.Topic, Partition: r.Partition},
			From:       r.From,
			To:         r.To,
		}
		switch {
		case in.Topic != "" && r.Topic != in.Topic:
			return failf(ErrInvalid, "`Ranges`: topic %q is another one than %q", r.Topic, in.Topic)
		case seen[one.CursorName]:
			return failf(ErrInvalid, "`Ranges`: %s/%d is there twice", r.Topic, r.Partition)
		}
		seen[one.CursorName] = true
		if err := one.Check(); err != nil {
			return inRange(r.Topic, r.Partition, err)
		}
	}
	return nil
}

// inRange names the partition in an error about it.
func inRange(topic string, partition int32, err error) error {
	known, is := errors.AsType[*Error](err)
	if !is {
		return err
	}
	named := *known
	named.Reason = fmt.Sprintf("%s/%d: %s", topic, partition, known.Reason)
	return &named
}

// lock locks the leases in the order of topics and partitions, and the number last: it is another
// partition's too, and must not wait for these owners (T14).
func (q *replays) lock(ctx context.Context, tx pgx.Tx) error {
	for _, one := range q.each {
		if err := one.lockLease(ctx, tx); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, cursor.LockReplaysSQL, q.Scope)
	return err
}

// read gives all partitions one number: none of them is written before all were read.
func (q *replays) read(ctx context.Context, tx pgx.Tx) (*Replayed, error) {
	d := &Replayed{Scope: q.Scope, Topic: q.Topic, Partition: -1, Resend: q.Resend}
	for _, one := range q.each {
		r, err := one.read(ctx, tx)
		if err != nil {
			return nil, inRange(one.Topic, one.Partition, err)
		}
		d.Replay = r.Replay
		d.Parked += r.Parked
		d.Partitions = append(d.Partitions, *r)
	}
	return d, nil
}

func (q *replays) differs(shown, now *Replayed) bool {
	return !slices.EqualFunc(shown.Partitions, now.Partitions, func(s, n Replayed) bool {
		return s.Topic == n.Topic &&
			s.Partition == n.Partition &&
			s.From == n.From &&
			s.To == n.To &&
			!s.Before.changed(n.Before)
	})
}

func (q *replays) do(ctx context.Context, tx pgx.Tx, by By, now *Replayed) (*Replayed, error) {
	for i, one := range q.each {
		done, err := one.do(ctx, tx, by, &now.Partitions[i])
		if err != nil {
			return nil, err
		}
		now.Partitions[i] = *done
	}
	return now, nil
}
