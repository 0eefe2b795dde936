package ops

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
)

// cursors is a decision about each of the cursors in use of a topic or of a scope, in one
// transaction.
type cursors struct {
	at    CursorName
	valid func() error
	// pick chooses among the cursors in use, and makes a decision for each.
	pick func(ctx context.Context, tx pgx.Tx, inUse []Cursor) ([]decision[CursorChange], error)
	each []decision[CursorChange] // by topic and partition
}

func (q *cursors) check() error { return q.valid() }

func (q *cursors) find(ctx context.Context, tx pgx.Tx) error {
	inUse, err := reports.Cursors[Cursor](ctx, tx, reports.CursorFilter{Scope: q.at.Scope, Topic: q.at.Topic})
	if err != nil {
		return err
	}
	inUse = slices.DeleteFunc(inUse, func(c Cursor) bool { return c.RetiredAt != nil })
	if len(inUse) == 0 {
		return failf(ErrNotFound, "there is no cursor in use (%s)", q.at).but("correct the flags; `onlyonce " +
			"cursor show` lists those there are")
	}
	q.each, err = q.pick(ctx, tx, inUse)
	return err
}

// lock finds the cursors and locks their leases, in the order of topics and partitions. A consumer
// locks no second lease while it waits for one.
func (q *cursors) lock(ctx context.Context, tx pgx.Tx) error {
	if err := q.find(ctx, tx); err != nil {
		return err
	}
	for _, one := range q.each {
		if err := one.lock(ctx, tx); err != nil {
			return err
		}
	}
	return nil
}

func (q *cursors) read(ctx context.Context, tx pgx.Tx) (*CursorChange, error) {
	if q.each == nil {
		if err := q.find(ctx, tx); err != nil {
			return nil, err
		}
	}
	d := &CursorChange{Scope: q.at.Scope, Topic: q.at.Topic}
	for _, one := range q.each {
		c, err := one.read(ctx, tx)
		if err != nil {
			return nil, err
		}
		d.Partitions = append(d.Partitions, *c)
	}
	return d, nil
}

func (q *cursors) differs(shown, now *CursorChange) bool {
	return !slices.EqualFunc(shown.Partitions, now.Partitions, func(s, n CursorChange) bool {
		return s.Topic == n.Topic && *s.Partition == *n.Partition && !q.each[0].differs(&s, &n)
	})
}

func (q *cursors) do(ctx context.Context, tx pgx.Tx, by By, now *CursorChange) (*CursorChange, error) {
	done := &CursorChange{Scope: q.at.Scope, Topic: q.at.Topic}
	for i, one := range q.each {
		c, err := one.do(ctx, tx, by, &now.Partitions[i])
		if err != nil {
			return nil, err
		}
		done.Partitions = append(done.Partitions, *c)
	}
	return done, nil
}

// pick chooses the partitions that are adopted: those that living processes report as halted for
// the reason, or else those that do not have the group yet.
func (in *AdoptInput) pick(ctx context.Context, tx pgx.Tx, inUse []Cursor) (each []decision[CursorChange], err error) {
	owners, _, err := readOwners(ctx, tx)
	if err != nil {
		return nil, err
	}
	halted := map[int32]*OwnedPartition{}
	for _, p := range living(owners) {
		if p.scope == in.Scope && p.Topic == in.Topic && p.Halted == in.Halted {
			halted[p.Partition] = p.OwnedPartition
		}
	}
	for i := range inUse {
		c := &inUse[i]
		p := halted[c.Partition]
		if in.Halted == "" {
			p = &OwnedPartition{}
		}
		hasGroup := c.Group != nil && *c.Group == in.Group
		if p == nil || in.At == "" && hasGroup {
			continue
		}
		if in.At != "" &&
			c.ReplayUntil != nil &&
			slices.Contains([]string{"gap", "blocked", "everything-fails"}, in.Halted) {
			return nil, failf(ErrRefused, "a replay is under way on partition %d, and nothing was done: "+
				"`onlyonce cursor adopt -scope %s -topic %s -partition %d -at %d -reason WHY` ends it where "+
				"it interrupted the work",
				c.Partition, in.Scope, in.Topic, c.Partition, *c.ReplayResume)
		}
		at, _ := in.at(c.Position, p) // check has seen it
		each = append(each, &adoption{
			AdoptInput: *in,
			name:       CursorName{Scope: in.Scope, Topic: in.Topic, Partition: c.Partition},
			at:         at,
		})
	}
	switch {
	case len(each) == 0 && in.Halted != "":
		return nil, failf(ErrNotFound, "no living process reports a partition as halted for %q (scope %q, topic %q)",
			in.Halted, in.Scope, in.Topic).but("`onlyonce status` shows what is halted")
	case len(each) == 0:
		return nil, failf(ErrNothing, "All %d cursors are of group %s already: nothing was changed.",
			len(inUse), in.Group)
	}
	return each, nil
}
