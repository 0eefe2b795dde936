package ops

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
)

// topicAdoption is an adoption of each partition, in one transaction.
type topicAdoption struct {
	AdoptInput
	each []*adoption // with the cursors in use, by partition
}

func (q *topicAdoption) check() error { return q.Check() }

// reported returns the partitions that living processes report as halted for the reason.
func (q *topicAdoption) reported(ctx context.Context, tx pgx.Tx) (map[int32]*OwnedPartition, error) {
	owners, err := readOwners(ctx, tx)
	found := map[int32]*OwnedPartition{}
	for _, p := range living(owners) {
		if p.scope == q.Scope && p.Topic == q.Topic && p.Halted == q.Halted {
			found[p.Partition] = p.OwnedPartition
		}
	}
	return found, err
}

// lock finds the cursors and locks their leases, in the order of partitions. A consumer locks no
// second lease while it waits for one.
func (q *topicAdoption) lock(ctx context.Context, tx pgx.Tx) error {
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

func (q *topicAdoption) find(ctx context.Context, tx pgx.Tx) error {
	cursors, err := readCursors(ctx, tx, reports.CursorFilter{Scope: q.Scope, Topic: q.Topic})
	if err != nil {
		return err
	}
	halted, err := q.reported(ctx, tx)
	if err != nil {
		return err
	}
	q.each = nil
	inUse := 0
	for i := range cursors {
		c := &cursors[i]
		if c.RetiredAt != nil {
			continue
		}
		inUse++
		p := halted[c.Partition]
		if q.Halted == "" {
			p = &OwnedPartition{}
		}
		if p == nil || q.At == "" && c.Group != nil && *c.Group == q.Group {
			continue
		}
		at, _ := q.at(c.Position, p.HighWatermark) // check has seen it
		q.each = append(q.each, &adoption{AdoptInput: q.AdoptInput, name: CursorName{Scope: q.Scope, Topic: q.Topic, Partition: c.Partition}, at: at})
	}
	switch {
	case q.Halted != "" && len(q.each) == 0 && inUse > 0:
		return failf(ErrNotFound, "no living process reports a partition as halted for %q (scope %q, topic %q)", q.Halted, q.Scope, q.Topic).but("`onlyonce status` shows what is halted")
	case inUse == 0:
		return failf(ErrNotFound, "there is no cursor in use (scope %q, topic %q)", q.Scope, q.Topic).but("correct the flags; `onlyonce cursor show` lists those there are")
	case len(q.each) == 0:
		return failf(ErrNothing, "All %d cursors are of group %s already: nothing was changed.", inUse, q.Group)
	}
	return nil
}

func (q *topicAdoption) read(ctx context.Context, tx pgx.Tx) (*Adopted, error) {
	if q.each == nil {
		if err := q.find(ctx, tx); err != nil {
			return nil, err
		}
	}
	d := &Adopted{Scope: q.Scope, Topic: q.Topic}
	for _, one := range q.each {
		a, err := one.read(ctx, tx)
		if err != nil {
			return nil, err
		}
		d.Partitions = append(d.Partitions, *a)
	}
	return d, nil
}

func (q *topicAdoption) differs(shown, now *Adopted) bool {
	return !slices.EqualFunc(shown.Partitions, now.Partitions, func(s, n Adopted) bool {
		return *s.Partition == *n.Partition && !q.each[0].differs(&s, &n)
	})
}

func (q *topicAdoption) do(ctx context.Context, tx pgx.Tx, by By, now *Adopted) (*Adopted, error) {
	done := &Adopted{Scope: q.Scope, Topic: q.Topic}
	for i, one := range q.each {
		a, err := one.do(ctx, tx, by, &now.Partitions[i])
		if err != nil {
			return nil, err
		}
		done.Partitions = append(done.Partitions, *a)
	}
	return done, nil
}
