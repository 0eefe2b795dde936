package ops

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/cursor"
	"github.com/onlyonce/onlyonce/internal/reports"
)

// leftSQL counts what is parked and not settled in a partition. In: scope, topic, partition, and
// the offsets from and to (null: any). One row. By the index parked_position.
const leftSQL = `
select count(*) from onlyonce.parked
 where kind <> 'call' and settled_at is null and scope = $1 and topic = $2 and partition = $3
   and ($4::bigint is null or "offset" >= $4) and ($5::bigint is null or "offset" < $5)`

// checkOne is check for a decision about one partition.
func (p *CursorName) checkOne() error {
	switch {
	case p.Topic == "":
		return failf(ErrInvalid, "the topic must not be empty")
	case p.Partition < 0:
		return failf(ErrInvalid, "the partition must not be negative")
	}
	return p.check()
}

// String names it.
func (p CursorName) String() string {
	topic, partition := p.parts()
	switch {
	case topic == nil:
		return fmt.Sprintf("scope %q", p.Scope)
	case partition == nil:
		return fmt.Sprintf("scope %q, topic %q", p.Scope, p.Topic)
	}
	return fmt.Sprintf("scope %q, topic %q, partition %d", p.Scope, p.Topic, p.Partition)
}

// lockLease excludes the cursor's owner, if there is one.
func (p *CursorName) lockLease(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, cursor.LockOwnerSQL, p.Scope, p.Topic, p.Partition)
	return err
}

// left returns how many messages are parked and not settled at offsets from and below to (nil:
// any). If the position is set back, they are passed over, and wait as before (K7).
func (p *CursorName) left(ctx context.Context, tx pgx.Tx, from, to *int64) (n int64, err error) {
	err = tx.QueryRow(ctx, leftSQL, p.Scope, p.Topic, p.Partition, from, to).Scan(&n)
	return n, err
}

// readOne returns the cursor, nil if there is none.
func (p *CursorName) readOne(ctx context.Context, tx pgx.Tx) (*Cursor, error) {
	found, err := reports.Cursors[Cursor](ctx, tx, reports.CursorFilter{
		Scope:     p.Scope,
		Topic:     p.Topic,
		Partition: &p.Partition,
	})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// readThere is readOne for a decision that makes no cursor.
func (p *CursorName) readThere(ctx context.Context, tx pgx.Tx) (*Cursor, error) {
	c, err := p.readOne(ctx, tx)
	if err == nil && c == nil {
		err = failf(ErrNotFound, "there is no cursor (%s)", *p).but("correct the flags; `onlyonce cursor " +
			"show` lists those there are")
	}
	return c, err
}

// readBack returns the cursor after it was written.
func (p *CursorName) readBack(ctx context.Context, tx pgx.Tx) (*Cursor, error) {
	c, err := p.readOne(ctx, tx)
	if err == nil && c == nil {
		err = errors.New("the cursor is not there after it was written")
	}
	return c, err
}

// fence fences the owner out. The cursor was read under the lock on its lease.
func (c *Cursor) fence(ctx context.Context, tx pgx.Tx) error {
	var epoch *int64
	if err := tx.QueryRow(ctx, cursor.FenceOwnerSQL, c.ID, c.Epoch).Scan(&epoch); err != nil {
		return err
	}
	if epoch == nil {
		return fmt.Errorf("the lease of cursor %d cannot be raised: its column \"until\" is set, which no cursor's is",
			c.ID)
	}
	return nil
}

// changed reports whether another consumer took the cursor over, or its position was set, since the
// first read.
func (c *Cursor) changed(now *Cursor) bool {
	return c == nil || c.ID != now.ID || c.Epoch != now.Epoch || c.Run != now.Run
}

// ownRun returns the run of the partition's own work, which a replay interrupts.
func (c *Cursor) ownRun() int32 {
	if c.ReplayResume != nil {
		return c.Run - 1
	}
	return c.Run
}

// keepsDoneFrom returns from which offset on messages stay done if the position is set to an
// offset. Nil: none does, because everything above a position that is set back is to be handled
// again (C7).
func (c *Cursor) keepsDoneFrom(at int64) *int64 {
	if at < c.stood() {
		return nil
	}
	return &at
}

// stood returns the position of the partition's own work, which a replay interrupts.
func (c *Cursor) stood() int64 {
	if c.ReplayResume != nil {
		return max(c.Position, *c.ReplayResume)
	}
	return c.Position
}

// redo returns the offset below which messages may have been handled before, if the cursor's
// position is set anew, and its topic (O6). A position that an operator has set, and from which no
// message was handled, does not count.
func (c *Cursor) redo() (until *int64, topic pgtype.UUID) {
	until = c.RedoUntil
	if c.RedoTopicID != nil && c.TopicID != nil && *c.RedoTopicID != *c.TopicID {
		until = nil
	}
	at := c.stood()
	known := c.AnchorOffset != nil || c.ReplayResume != nil
	if known && (until == nil || *until < at) {
		until = &at
	}
	if c.TopicID == nil {
		return until, topicID(c.RedoTopicID)
	}
	return until, topicID(c.TopicID)
}

// topicID parses an id for its column.
func topicID(text *string) (id pgtype.UUID) {
	if text != nil {
		_ = id.Scan(*text) // it comes from a column of that type
	}
	return id
}
