package ops

import (
	"context"
	"math"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// AdoptTopicInput is the input of [AdoptTopic].
type AdoptTopicInput struct {
	// Scope and Topic pick the cursors of all partitions in use. Both are required.
	Scope, Topic string

	// Halted picks only the partitions that living processes report as halted for this reason, for
	// example new-topic. Defaults to all.
	Halted string

	// Group is the Kafka group to own the cursors. Required, unless At is set. Defaults to the next
	// group that takes them.
	Group string

	// At is the next offset to handle in each partition: a number; "position" for each cursor's
	// own; or "last" for the log's end as the partition's owner has reported it. It needs Halted.
	// Defaults to no change: the positions stay, with the proofs that the log is the same.
	At string

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

// AdoptTopic is [AdoptCursor] for partitions of a topic, in one transaction. Use it, for example,
// if a group was renamed and each partition is halted for the reason foreign-group, or if the topic
// was created again and each is halted for new-topic. Cursors that are retired, or that have the
// group already, stay as they are.
//
// Errors are of kind ErrInvalid, ErrNotFound if the topic has no cursor in use or no halted one for
// the reason, ErrNothing if all of them have the group, ErrRefused if the old group has not
// released one of them, unless OldGroupStopped is set, and ErrChanged. It waits for the owners'
// batches to end.
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
	if _, err := q.at(0, 0); err != nil {
		return err
	}
	switch {
	case q.At != "" && q.Halted == "":
		return failf(ErrInvalid, "`At` needs `Halted` or `Partition`: a position is set for partitions that are halted for one reason, or for one")
	case q.At == "" || q.Group != "":
		return checkText("the group", q.Group)
	}
	return nil
}

// at is the offset that a partition is set to, nil if its position stays.
func (q *topicAdoption) at(position, last int64) (*int64, error) {
	switch q.At {
	case "":
		return nil, nil
	case "position":
		return &position, nil
	case "last":
		return &last, nil
	}
	n, err := strconv.ParseInt(q.At, 10, 64)
	if err != nil || n < 0 || n == math.MaxInt64 {
		return nil, failf(ErrInvalid, "`At` must be an offset, \"position\" or \"last\"")
	}
	return &n, nil
}

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
	cursors, err := readCursors(ctx, tx, CursorFilter{Scope: q.Scope, Topic: q.Topic})
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
		place := CursorName{Scope: q.Scope, Topic: q.Topic, Partition: c.Partition}
		q.each = append(q.each, &adoption{AdoptInput: AdoptInput{CursorName: place, Group: q.Group, OldGroupStopped: q.OldGroupStopped}, at: at})
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
