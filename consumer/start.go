package consumer

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"

	cursors "github.com/onlyonce/onlyonce/internal/cursor"

	"github.com/onlyonce/onlyonce/consumer/source"
)

// firstPartitionsSQL records how many partitions a topic has when a scope reads it for the first
// time. In: scope, topic, partitions. Out: one row with the number that was recorded first.
const firstPartitionsSQL = `
with noted as (
  insert into onlyonce.topics (scope, topic, partitions) values ($1, $2, $3) on conflict do nothing returning partitions)
select partitions from noted union all select partitions from onlyonce.topics where scope = $1 and topic = $2 limit 1`

// firstPartitions returns how many partitions the topic had when this scope began to read it, or 0
// if that is not known. Partitions above that number were added later.
func (c *Consumer) firstPartitions(ctx context.Context, id source.Identity) (int32, error) {
	if id.Partitions <= 0 {
		return 0, nil
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var was int32
	err := c.pool.QueryRow(ctx, firstPartitionsSQL, c.cfg.Scope, id.Topic, id.Partitions).Scan(&was)
	// Another process has inserted it after this statement's snapshot.
	if errors.Is(err, pgx.ErrNoRows) {
		err = c.pool.QueryRow(ctx, firstPartitionsSQL, c.cfg.Scope, id.Topic, id.Partitions).Scan(&was)
	}
	if err != nil {
		return 0, fmt.Errorf("noting the partitions of %s: %w", id.Topic, err)
	}
	if id.Partitions <= was {
		return was, nil
	}
	// Once for each number.
	if told, _ := c.reportedPartitions.Swap(id.Topic, id.Partitions); told != id.Partitions {
		c.cfg.Logger.Warn("onlyonce: topic has more partitions than when this scope began to read it: order by key holds for each number of partitions by itself",
			"scope", c.cfg.Scope, "topic", id.Topic, "was", was, "is", id.Partitions)
		if c.cfg.Hooks.Repartitioned != nil {
			c.cfg.Hooks.Repartitioned(PartitionEvent{Topic: id.Topic, Was: was, Is: id.Partitions})
		}
	}
	return was, nil
}

// decideStart writes where a partition starts, and only then commits to Kafka. first is how many
// partitions the topic had when this scope began to read it. A partition that was added later
// starts at its beginning, because nothing in it is older than the decision to read from the end.
//
// If Kafka has an offset of this consumer's, but the database has no row, the database has lost its
// history: for example by a failover or a restore, or because it is another database. To continue
// from that offset would skip what was lost.
func (w *worker) decideStart(ctx context.Context, first int32) error {
	c, p, id := w.c, w.p, w.id
	offset, metadata, err := p.Committed(ctx)
	if err != nil {
		return fmt.Errorf("committed offset of %s/%d: %w", id.Topic, id.Partition, err)
	}
	if strings.HasPrefix(metadata, metadataPrefix) {
		return &HaltError{Scope: c.cfg.Scope, Group: c.source.Group(), Topic: id.Topic, Partition: id.Partition, Position: offset, Reason: HaltHistoryLost, Shard: c.shard,
			Detail: fmt.Sprintf("group %q has committed offset %d with metadata %q, but this database has no cursor: is it another database, an older copy, or was the scope renamed?",
				c.source.Group(), offset, metadata)}
	}
	log, err := p.Bounds(ctx)
	if err != nil {
		return fmt.Errorf("bounds of %s/%d: %w", id.Topic, id.Partition, err)
	}
	policy := "committed"
	if offset < 0 {
		policy, offset = "earliest", log.Start
		if c.cfg.StartLatest && id.Partition < first {
			policy, offset = "latest", log.End
		}
	}
	bounded, cancel := c.bounded(ctx)
	defer cancel()
	_, err = c.pool.Exec(bounded, cursors.CreateSQL, c.cfg.Scope, id.Topic, id.Partition, c.source.Group(), id.ClusterID,
		uuidOrNull(id.TopicID), offset, policy, epochOrNull(log.LeaderEpoch))
	if err != nil {
		return fmt.Errorf("deciding the start of %s/%d: %w", id.Topic, id.Partition, err)
	}
	return nil
}

// compareGroupOffset compares the group's offset with the position. If it is the consumer's own and
// ahead, it shows what the database has lost. If another program has written it, compareGroupOffset
// reports that. It moves nothing: the database counts.
func (w *worker) compareGroupOffset(ctx context.Context, cur *cursor) error {
	offset, metadata, err := w.p.Committed(ctx)
	if err != nil {
		return fmt.Errorf("committed offset of %s/%d: %w", w.id.Topic, w.id.Partition, err)
	}
	if offset < 0 || offset == w.pos {
		return nil
	}
	if strings.HasPrefix(metadata, metadataPrefix) {
		return w.recordRedo(ctx, cur, offset)
	}
	w.c.cfg.Logger.Warn("onlyonce: an offset that another program committed to Kafka is ignored; to handle messages again use `onlyonce replay`",
		"scope", w.c.cfg.Scope, "topic", w.id.Topic, "partition", w.id.Partition, "offset", offset, "position", w.pos)
	if w.c.cfg.Hooks.OffsetIgnored != nil {
		w.c.cfg.Hooks.OffsetIgnored(PartitionEvent{Topic: w.id.Topic, Partition: w.id.Partition, Offset: offset, Metadata: metadata, Position: w.pos})
	}
	return nil
}

// recordRedo records that messages between the position and an offset ahead of it were handled
// before: in a history that the database has lost, or before an operator set the position back.
// Calls of these messages may have been made (O6). The record is in the database, because the next
// owner must know it too, and the raise that follows overwrites the group's offset in Kafka, which
// shows it.
func (w *worker) recordRedo(ctx context.Context, cur *cursor, offset int64) error {
	if offset <= w.pos {
		return nil
	}
	w.redoUntil = max(w.redoUntil, offset)
	if cur.redoOffset(w.id.TopicID) >= offset {
		return nil
	}
	ctx, cancel := w.c.bounded(ctx)
	defer cancel()
	if _, err := w.c.pool.Exec(ctx, cursors.RedoSQL, cur.id, offset, uuidOrNull(w.id.TopicID)); err != nil {
		return fmt.Errorf("noting which messages are handled again: %w", err)
	}
	return nil
}

// metadataPrefix begins the metadata of every offset that a consumer commits to Kafka, so that a
// consumer can recognize its own offsets.
const metadataPrefix = "onlyonce/1 "

// offsetMetadata returns the text that goes with an offset committed to Kafka.
func (w *worker) offsetMetadata(offset int64) string {
	return fmt.Sprintf("%s%s %d", metadataPrefix, url.PathEscape(w.c.cfg.Scope), offset)
}
