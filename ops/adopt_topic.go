package ops

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
)

// AdoptTopicInput is the input of [AdoptTopic].
type AdoptTopicInput struct {
	// Scope and Topic pick the cursors: all partitions that are in use. Both are required.
	Scope, Topic string

	// Group is the Kafka group that is to own the cursors. Required: the positions stay as they
	// are, so that this is safe for all partitions at once. AdoptCursor sets a position.
	Group string

	// OldGroupStopped gives the cursors to Group although the old group has not released them,
	// because its processes died. Defaults to false.
	OldGroupStopped bool

	// Shown is the result of a dry run with the same input that a person agreed to. If one of the
	// cursors has another owner or run by now, the error is of kind ErrChanged.
	Shown *AdoptedTopic
}

// AdoptedTopic is the result of [AdoptTopic].
type AdoptedTopic struct {
	Audited

	Scope      string    `json:"scope"`
	Topic      string    `json:"topic"`
	Partitions []Adopted `json:"partitions"` // by number
}

// AdoptTopic hands the cursors of all partitions of a topic to a group, in one transaction: a group
// was renamed, and each partition is halted for the reason foreign-group. Positions stay as they
// are. Cursors that are retired, or that have the group already, stay as they are too.
//
// Errors are of kind ErrInvalid, ErrNotFound if the topic has no cursor in use, ErrNothing if all
// of them have the group, ErrRefused if the old group has not released one of them, unless
// OldGroupStopped is set, and ErrChanged. It waits for the owners' batches to end.
func AdoptTopic(ctx context.Context, db DB, by By, in AdoptTopicInput) (*AdoptedTopic, error) {
	k := kind{action: "cursor adopt", subject: "one of the cursors", look: "onlyonce cursor show"}
	return decide(ctx, db, k, by, &topicAdoption{AdoptTopicInput: in}, in.Shown)
}

// topicAdoption is an adoption of each partition, in one transaction.
type topicAdoption struct {
	AdoptTopicInput
	each []*adoption // with the cursors in use, by partition
}

func (q *topicAdoption) check() error {
	p := CursorName{Scope: q.Scope, Topic: q.Topic}
	if err := p.checkOne(); err != nil {
		return err
	}
	return checkText("the group", q.Group)
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
	cursors, err := readCursors(ctx, tx, CursorFilter{Scope: q.Scope, Topic: q.Topic})
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
		if c.Group == nil || *c.Group != q.Group {
			place := CursorName{Scope: q.Scope, Topic: q.Topic, Partition: c.Partition}
			q.each = append(q.each, &adoption{AdoptInput: AdoptInput{CursorName: place, Group: q.Group, OldGroupStopped: q.OldGroupStopped}})
		}
	}
	switch {
	case inUse == 0:
		return failf(ErrNotFound, "there is no cursor in use (scope %q, topic %q)", q.Scope, q.Topic).but("correct the flags; `onlyonce cursor show` lists those there are")
	case len(q.each) == 0:
		return failf(ErrNothing, "All %d cursors are of group %s already: nothing was changed.", inUse, q.Group)
	}
	return nil
}

func (q *topicAdoption) read(ctx context.Context, tx pgx.Tx) (*AdoptedTopic, error) {
	if q.each == nil {
		if err := q.find(ctx, tx); err != nil {
			return nil, err
		}
	}
	d := &AdoptedTopic{Scope: q.Scope, Topic: q.Topic}
	for _, one := range q.each {
		a, err := one.read(ctx, tx)
		if err != nil {
			return nil, err
		}
		d.Partitions = append(d.Partitions, *a)
	}
	return d, nil
}

func (q *topicAdoption) differs(shown, now *AdoptedTopic) bool {
	return !slices.EqualFunc(shown.Partitions, now.Partitions, func(s, n Adopted) bool {
		return s.Partition == n.Partition && !q.each[0].differs(&s, &n)
	})
}

func (q *topicAdoption) do(ctx context.Context, tx pgx.Tx, by By, now *AdoptedTopic) (*AdoptedTopic, error) {
	done := &AdoptedTopic{Scope: q.Scope, Topic: q.Topic}
	for i, one := range q.each {
		a, err := one.do(ctx, tx, by, &now.Partitions[i])
		if err != nil {
			return nil, err
		}
		done.Partitions = append(done.Partitions, *a)
	}
	return done, nil
}
