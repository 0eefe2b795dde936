package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/consumer/source"
	cursors "github.com/onlyonce/onlyonce/internal/cursor"
	"github.com/onlyonce/onlyonce/internal/names"
)

// readScopeSQL reads what ids mean in a scope. In: scope. Out: at most one row, by the primary key.
const readScopeSQL = `
select topics,
       copies,
       first_topic,
       class,
       onlyonce.class_before(scope)
  from onlyonce.scopes where scope = $1`

// makeScopeSQL records what ids mean in a scope for the first time. In: scope, topics, choice
// (null: none), first topic, class of horizon. An existing row stays as it is.
const makeScopeSQL = `
insert into onlyonce.scopes (
  scope,
  topics,
  copies,
  first_topic,
  class
) values (
  $1,
  $2,
  $3,
  $4,
  $5
) on conflict do nothing`

// joinScopeSQL adds a topic, and the choice if none was made. In: scope, topic, choice, topics and
// choice as they were read. Out: a row, unless another consumer has changed it meanwhile.
const joinScopeSQL = `
update onlyonce.scopes
   set topics = case when $2::text = any (topics) then topics else topics || $2::text end, copies = coalesce(copies, $3)
 where scope = $1 and topics = $4::text[] and copies is not distinct from $5::text`

// scopeRow is a row of onlyonce.scopes.
type scopeRow struct {
	topics     []string
	copies     *string
	firstTopic string

	class       string
	classBefore *string // nil: the ring of class suffices
}

// idInTopic reports whether a topic's ids count within it, so that the topic is part of their keys.
// The result never changes for a topic. If the scope began with one topic, the keys of that topic
// never contain it, whatever is chosen for a second one, so no key is forgotten.
func (r *scopeRow) idInTopic(topic string) bool {
	return r.copies != nil && *r.copies == *WithinTopic.databaseWord() && topic != r.firstTopic
}

// readScope returns nil if there is no row.
func (c *Consumer) readScope(ctx context.Context) (*scopeRow, error) {
	var r scopeRow
	err := c.queryRow(ctx, readScopeSQL, c.cfg.Scope).Scan(
		&r.topics,
		&r.copies,
		&r.firstTopic,
		&r.class,
		&r.classBefore,
	)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the scope's id settings: %w", err)
	}
	return &r, nil
}

// joinScope records which topic is read and what ids mean in it. It halts if other consumers of the
// scope have made another choice (K8).
func (w *worker) joinScope(ctx context.Context) error {
	c := w.c
	topic := w.id.Topic
	if c.cfg.Key == nil && !c.events {
		return nil
	}
	chosen := c.cfg.Copies.databaseWord()
	if c.events { // each topic is an endpoint and gives out its own ids
		chosen = WithinTopic.databaseWord()
	}
	for range 10 {
		row, err := c.readScope(ctx)
		if err != nil {
			return err
		}
		switch {
		case row == nil:
			if err := w.makeScope(ctx, chosen); err != nil {
				return err
			}
			continue
		case w.checkClass(row) != nil:
			return w.checkClass(row)
		case chosen == nil && !slices.Contains(row.topics, topic):
			return w.haltError(HaltCopies, "the scope has read %s, this consumer reads %s, and its "+
				"Config.Copies is not set (the scope's: %s)",
				strings.Join(row.topics, ", "), topic, copiesName(row.copies))
		case chosen != nil && row.copies != nil && *chosen != *row.copies:
			return w.haltError(HaltCopies, "the scope's ids were claimed under %s (topics: %s), and this "+
				"consumer's Config.Copies is %s",
				copiesName(row.copies), strings.Join(row.topics, ", "), copiesName(chosen))
		case slices.Contains(row.topics, topic) && (chosen == nil || row.copies != nil):
			w.idInTopic = row.idInTopic(topic)
			return nil
		}
		if err := c.exec(ctx, joinScopeSQL, c.cfg.Scope, topic, chosen, row.topics, row.copies); err != nil {
			return fmt.Errorf("storing the scope's id settings: %w", err)
		}
	}
	return fmt.Errorf("scope %q: its id settings keep changing concurrently; giving up", c.cfg.Scope)
}

// makeScope writes the scope's row for the first time. If another shard has one, it copies that
// row, because a partition that moves takes its keys along. If none has one, the first shard gets
// it first, so that two shards that begin at once agree. No key of the scope is here, so the ring
// of the class before is not asked here (K8).
func (w *worker) makeScope(ctx context.Context, chosen *string) error {
	c := w.c
	row := scopeRow{topics: []string{w.id.Topic}, copies: chosen, class: c.cfg.Horizon.class()}
	if topics := sourceTopics(c.source); len(topics) == 1 || topics == nil && chosen == nil {
		row.firstTopic = w.id.Topic
	}
	for i, other := range slices.Concat(c.shards, c.shards[:min(len(c.shards), 1)]) {
		if i == len(c.shards) {
			if err := other.insertScope(ctx, row); err != nil {
				return err
			}
		}
		there, err := other.readScope(ctx)
		if err != nil {
			return fmt.Errorf("querying shard %q: %w", other.shard, err)
		}
		if there != nil {
			row = *there
			break
		}
	}
	return c.insertScope(ctx, row)
}

// insertScope writes the scope's row, unless there is one.
func (c *Consumer) insertScope(ctx context.Context, row scopeRow) error {
	if err := c.exec(ctx, makeScopeSQL, c.cfg.Scope, row.topics, row.copies, row.firstTopic, row.class); err != nil {
		return fmt.Errorf("storing the scope's id settings: %w", err)
	}
	return nil
}

// checkClass halts unless the scope has the class of Config.Horizon, or had it before and is still
// claimed in both rings: then the processes of a service may be deployed one after another (K10).
func (w *worker) checkClass(row *scopeRow) error {
	mine := w.c.cfg.Horizon.class()
	if w.c.cfg.Key == nil || slices.Contains(classesOf(row.class, row.classBefore), mine) {
		return nil
	}
	err := w.haltError(HaltClass, "the scope's keys are of class %s, and this consumer's Config.Horizon is %s",
		row.class, mine)
	err.class = mine
	return err
}

// otherShardSQL asks a shard what it knows of a partition. In: scope, topic, partition. Out: one
// row with the cursor's position (null: no cursor), whether the cursor is retired, the id of its
// topic, and how many partitions the topic had when the scope began to read it here (null: it never
// did). By the unique (scope, topic, partition) and the primary key of onlyonce.topics.
const otherShardSQL = `
select greatest(p.next_offset, p.replay_resume), coalesce(p.retired_at is not null, false), p.topic_id,
       (select t.partitions from onlyonce.topics t where t.scope = $1 and t.topic = $2)
  from (values (1)) one left join onlyonce.positions p on p.scope = $1 and p.topic = $2 and p.partition = $3`

// checkOtherShards halts unless this shard is the only one in which the partition has a cursor that
// counts (F12). It returns how many partitions the topic had when the scope began to read it in any
// shard (0: not known).
//
// The check runs until the first batch of the cursor's present run commits. Later it is not needed:
// the first committer has checked, and a process that takes the partition to another shard after
// that runs the check there and finds this cursor. If two processes whose functions differ begin at
// once, each writes its row before it checks, so at least one of them sees the other's. A shard
// that does not answer is an error, because it might have the cursor.
//
// If there is no cursor here, a retired one elsewhere counts too: the partition was moved, and an
// operator has to decide where it continues. A cursor that was retired ahead of every position of
// this one counts as well: the partition was taken from the wrong database.
func (w *worker) checkOtherShards(ctx context.Context, cur *cursor) (first int32, err error) {
	if w.c.shards == nil || (cur != nil && cur.anchor != nil) {
		return 0, nil
	}
	ctx, cancel := w.c.boundedQuery(ctx)
	defer cancel()
	for _, other := range w.c.shards {
		if other == w.c {
			continue
		}
		var at *int64
		var retired bool
		var topic pgtype.UUID
		var partitions *int32
		err := other.pool.QueryRow(ctx, otherShardSQL, w.c.cfg.Scope, w.id.Topic, w.id.Partition).Scan(
			&at,
			&retired,
			&topic,
			&partitions,
		)
		if err != nil {
			return 0, fmt.Errorf("querying shard %q for a cursor of %s/%d: %w",
				other.shard, w.id.Topic, w.id.Partition, err)
		}
		if partitions != nil && (first == 0 || *partitions < first) {
			first = *partitions
		}
		another := topic.Valid && w.id.TopicID != [16]byte{} && topic.Bytes != w.id.TopicID
		if at == nil {
			continue
		}
		passed := cur != nil && (another || *at <= cur.highestPosition(w.id.TopicID))
		if retired && passed {
			continue
		}
		if cur == nil {
			w.pos = *at
		}
		halt := w.haltError(HaltOtherShard, "shard %q has the cursor, at offset %d", other.shard, *at)
		switch {
		case retired && cur != nil:
			halt.otherAhead = true
			halt.Detail = fmt.Sprintf("shard %q had the cursor, which was retired at offset %d; in shard %q "+
				"it is at %d, and messages from there on would be handled again",
				other.shard, *at, w.c.shard, w.pos)
		case retired:
			halt.Detail = fmt.Sprintf("shard %q had the cursor, which was retired at offset %d, and shard %q has none",
				other.shard, *at, w.c.shard)
		}
		halt.Other = other.shard
		halt.otherRetired = retired
		return 0, halt
	}
	return first, nil
}

// firstPartitionsSQL records how many partitions a topic has when a scope reads it for the first
// time. In: scope, topic, partitions. Out: one row with the number that was recorded first.
const firstPartitionsSQL = `
with noted as (
  insert into onlyonce.topics (scope, topic, partitions)
    values ($1, $2, $3) on conflict do nothing returning partitions)
select partitions from noted union all select partitions from onlyonce.topics where scope = $1 and topic = $2 limit 1`

// firstPartitions returns how many partitions the topic had when this scope began to read it, or 0
// if that is not known. Partitions above that number were added later (F11).
func (c *Consumer) firstPartitions(ctx context.Context, id source.Identity) (int32, error) {
	if id.Partitions <= 0 {
		return 0, nil
	}
	var was int32
	err := c.queryRow(ctx, firstPartitionsSQL, c.cfg.Scope, id.Topic, id.Partitions).Scan(&was)
	// Another process has inserted it after this statement's snapshot.
	if errors.Is(err, pgx.ErrNoRows) {
		err = c.queryRow(ctx, firstPartitionsSQL, c.cfg.Scope, id.Topic, id.Partitions).Scan(&was)
	}
	if err != nil {
		return 0, fmt.Errorf("recording the partitions of %s: %w", id.Topic, err)
	}
	if id.Partitions <= was {
		return was, nil
	}
	// Once for each number.
	if before, _ := c.reportedPartitions.Swap(id.Topic, id.Partitions); before != id.Partitions {
		c.cfg.Logger.Warn("onlyonce: topic has more partitions than when this scope began to read it: order "+
			"by key holds for each number of partitions by itself",
			"scope", c.cfg.Scope, "topic", id.Topic, "was", was, "is", id.Partitions)
		emit(c.cfg.Hooks.Repartitioned, RepartitionedEvent{Topic: id.Topic, Was: was, Is: id.Partitions})
	}
	return was, nil
}

// decideStart writes where a partition starts, and only then commits to Kafka. first is how many
// partitions the topic had when this scope began to read it. A partition that was added later
// starts at its beginning, because nothing in it is older than the decision to read from the end.
//
// If Kafka has an offset of this consumer's, but the database has no row, the database has lost its
// history: for example by a failover or a restore, or because it is another database. To continue
// from that offset would skip what was lost (F3, F11).
func (w *worker) decideStart(ctx context.Context, first int32) error {
	c := w.c
	p := w.p
	id := w.id
	offset, metadata, err := p.Committed(ctx)
	if err != nil {
		return fmt.Errorf("committed offset of %s/%d: %w", id.Topic, id.Partition, err)
	}
	if err := w.checkMark(offset, metadata); err != nil {
		return err
	}
	if _, ours := names.Marked(metadata); ours {
		return &HaltError{
			Scope:          c.cfg.Scope,
			Group:          c.source.Group(),
			TopicPartition: id.TopicPartition,
			Position:       offset,
			Reason:         HaltHistoryLost,
			Shard:          c.shard,
			Detail: fmt.Sprintf(
				"group %q has committed offset %d with metadata %q, but this database has no cursor: "+
					"is it another database, or an older copy?",
				c.source.Group(),
				offset,
				metadata,
			),
		}
	}
	log, err := p.Bounds(ctx)
	if err != nil {
		return fmt.Errorf("bounds of %s/%d: %w", id.Topic, id.Partition, err)
	}
	policy := "committed"
	if offset < 0 {
		policy = "earliest"
		offset = log.Start
		switch start := c.cfg.Start; {
		case start.policy != "" && first == 0:
			return fmt.Errorf("Config.Start: must not be set: the source does not say how many partitions "+
				"%s has, so whether partition %d was added later is not known", id.Topic, id.Partition)
		case start.policy == "" || id.Partition >= first:
		case start.policy == "latest":
			policy = start.policy
			offset = log.End
		default:
			policy = start.policy
			if offset, err = p.OffsetAt(ctx, start.at); err != nil {
				return fmt.Errorf("offset of %s/%d at %v: %w", id.Topic, id.Partition, start.at, err)
			}
		}
	}
	err = c.exec(
		ctx,
		cursors.CreateSQL,
		c.cfg.Scope,
		id.Topic,
		id.Partition,
		c.source.Group(),
		id.ClusterID,
		uuidOrNull(id.TopicID),
		offset,
		policy,
		epochOrNull(log.LeaderEpoch),
		names.Cursor(c.cfg.Scope, id.Topic, id.Partition).String(),
	)
	if err != nil {
		return fmt.Errorf("deciding the start of %s/%d: %w", id.Topic, id.Partition, err)
	}
	return nil
}

// compareGroupOffset compares the group's offset with the position. If it is the consumer's own and
// ahead, it shows what the database has lost. If another program has written it, compareGroupOffset
// reports that. It moves nothing: the database counts (O6).
func (w *worker) compareGroupOffset(ctx context.Context, cur *cursor) error {
	offset, metadata, err := w.p.Committed(ctx)
	if err != nil {
		return fmt.Errorf("committed offset of %s/%d: %w", w.id.Topic, w.id.Partition, err)
	}
	w.state.ignored.Store(nil)
	if cur.groupID != nil { // otherwise an operator has adopted the cursor
		if err := w.checkMark(offset, metadata); err != nil {
			return err
		}
	}
	scope, ours := names.Marked(metadata)
	w.marked = ours && scope == w.c.cfg.Scope
	if offset < 0 || offset == w.pos {
		return nil
	}
	if w.marked {
		return w.recordRedo(ctx, cur, offset)
	}
	w.c.cfg.Logger.Warn("onlyonce: an offset that another program committed to Kafka is ignored; to handle "+
		"messages again use `onlyonce replay`",
		"scope", w.c.cfg.Scope, "topic", w.id.Topic, "partition", w.id.Partition, "offset", offset, "position", w.pos)
	w.state.ignored.Store(&ignoredOffset{offset, w.pos, time.Now()})
	emit(w.c.cfg.Hooks.OffsetIgnored, OffsetIgnoredEvent{
		TopicPartition: w.id.TopicPartition,
		Offset:         offset,
		Metadata:       metadata,
		Position:       w.pos,
	})
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
	if err := w.c.exec(ctx, cursors.RedoSQL, cur.id, offset, uuidOrNull(w.id.TopicID)); err != nil {
		return fmt.Errorf("recording which messages are handled again: %w", err)
	}
	return nil
}
