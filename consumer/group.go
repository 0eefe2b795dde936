package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/process"
)

// groupMarks are the scopes that a group has, by the metadata of its committed offsets.
type groupMarks struct {
	mine    bool                  // this consumer's is one of them
	foreign source.TopicPartition // a partition in which it has another scope
	scope   string                // that scope; empty: none
}

// readMarks reads the marks of the group in the topics of the source. A source that cannot read
// them shows none: then another scope is found only in a partition that it has owned.
func (c *Consumer) readMarks(ctx context.Context) (marks groupMarks, err error) {
	reader, can := c.source.(SourceGroupMetadata)
	if !can {
		return marks, nil
	}
	ctx, cancel := process.AtStart(ctx)
	defer cancel()
	committed, err := reader.GroupMetadata(ctx)
	if err != nil {
		return marks, fmt.Errorf("looking whose the group is: %w", err)
	}
	for at, metadata := range committed {
		scope, ours := names.Marked(metadata)
		switch {
		case !ours:
		case scope == c.cfg.Scope:
			marks.mine = true
		default:
			marks.foreign = at
			marks.scope = scope
		}
	}
	return marks, nil
}

// foreignScope is the error of a group that is another scope's in a partition.
func (c *Consumer) foreignScope(id, at source.TopicPartition, pos int64, scope string) *HaltError {
	return &HaltError{
		Scope:          c.cfg.Scope,
		Group:          c.source.Group(),
		TopicPartition: id,
		Position:       pos,
		Reason:         HaltForeignScope,
		Shard:          c.shard,
		Detail: fmt.Sprintf(
			"group %q is that of scope %q in partition %s/%d, and this consumer has scope %q: "+
				"they would divide the messages between them",
			c.source.Group(),
			scope,
			at.Topic,
			at.Partition,
			c.cfg.Scope,
		),
	}
}

// hasGroupSQL reports whether a scope has cursors in a group, or such that an operator has given to
// the next owner. In: scope, group. By the unique index on (scope, topic, partition).
const hasGroupSQL = `select exists (select from onlyonce.cursors where scope = $1 and coalesce(group_id, $2) = $2)`

// checkGroup refuses to join a group that is another scope's, so that the members of that scope
// keep their partitions. A group in which this scope has worked, or is to work by an operator's
// decision, is joined: each of its partitions is checked when it is taken over. So is one that
// cannot be read now (F15).
func (c *Consumer) checkGroup(ctx context.Context) error {
	marks, err := c.readMarks(ctx)
	if err != nil {
		c.cfg.Logger.Debug("onlyonce: the group's offsets cannot be read before it is joined",
			"group", c.source.Group(), "error", err)
		return nil
	}
	if marks.scope == "" || marks.mine {
		return nil
	}
	for _, d := range c.databases() {
		var has bool
		if err := d.queryRow(ctx, hasGroupSQL, c.cfg.Scope, c.source.Group()).Scan(&has); err != nil {
			return fmt.Errorf("consumer: %s: looking for cursors in group %q: %w",
				d.describeDatabase(), c.source.Group(), err)
		}
		if has {
			return nil
		}
	}
	refused := c.foreignScope(marks.foreign, marks.foreign, -1, marks.scope)
	return fmt.Errorf("%w: %s; %s", errForeignScope, refused.Detail, ownGroups)
}

var errForeignScope = errors.New("consumer: the group is another scope's, and was not joined")

// checkMark halts if the metadata of an offset that the group has committed in this partition names
// another scope (F15).
func (w *worker) checkMark(offset int64, metadata string) error {
	if scope, ours := names.Marked(metadata); ours && scope != w.c.cfg.Scope {
		return w.c.foreignScope(w.id.TopicPartition, w.id.TopicPartition, offset, scope)
	}
	return nil
}

// checkMarks halts if another scope works in the group. It runs after this process has committed an
// offset under its own scope's name, and before it becomes the owner, as long as the scope has
// committed no batch in this run of the cursor (F15):
//
//	A commits its mark in partition 0, and B in partition 1; each looks afterwards
//	whichever of the two looks later sees the other's mark, and halts; no order lets both go on
//
// A cursor that an operator has adopted for the next owner is taken over whatever the marks are.
func (w *worker) checkMarks(ctx context.Context, cur *cursor) error {
	if cur.groupID == nil || cur.anchor != nil && w.marked {
		return nil
	}
	marks, err := w.c.readMarks(ctx)
	if err != nil || marks.scope == "" {
		return err
	}
	return w.c.foreignScope(w.id.TopicPartition, marks.foreign, w.pos, marks.scope)
}
