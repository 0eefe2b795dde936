package consumer

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/consumer/internal/budget"
	"github.com/onlyonce/onlyonce/internal/ready"
	"github.com/onlyonce/onlyonce/shard"
)

// AnyHandler is a [Handler], or a [BatchHandler].
type AnyHandler interface {
	~func(context.Context, Tx, *Message) error | ~func(context.Context, Tx, []*Message) error
}

// either returns a handler as the one type or as the other, also if it is of a type of the user's
// own.
func either[H AnyHandler](handler H) (Handler, BatchHandler) {
	v := reflect.ValueOf(handler)
	if single := reflect.TypeFor[Handler](); v.CanConvert(single) {
		return v.Convert(single).Interface().(Handler), nil
	}
	return nil, v.Convert(reflect.TypeFor[BatchHandler]()).Interface().(BatchHandler)
}

// setFault returns what is wrong with the databases of a consumer.
func setFault(set *shard.Set, events bool) error {
	if set == nil {
		return fmt.Errorf("%w: db: must not be nil", ErrConfig)
	}
	if _, partitions := set.Routes(); !partitions {
		return fmt.Errorf("%w: db: shard.Config.OfPartition: must not be nil: it names the database of a partition", ErrConfig)
	}
	if events {
		return fmt.Errorf("%w: db: must be one pool with a source of events: those lie in one database, and are claimed there", ErrConfig)
	}
	return nil
}

// shared is what the shards of a consumer have in common, because they are in one process.
type shared struct {
	partitions         ownedPartitions
	budget             budget.Budget
	stuck              atomic.Int64 // abandoned handlers that are still running
	reportedPartitions sync.Map     // topic: the number of partitions last passed to Hooks.Repartitioned
	begun              ready.Run

	// copyBytes is true if the handler changes its messages in place. It then gets full copies.
	copyBytes atomic.Bool
	// enqueues is true if a handler has asked for calls.
	enqueues atomic.Bool
}

// makeShards makes a consumer's shards: each is the consumer with one database.
func (c *Consumer) makeShards(set *shard.Set) {
	c.set = set
	c.poller = newPoller(c) // for partitions of no shard: it has nothing to ask, and never runs
	for _, db := range set.Databases() {
		one := *c
		one.shard = db.Name
		one.setPool(db.Pool)
		c.shards = append(c.shards, &one)
	}
	for _, one := range c.shards {
		one.shards = c.shards
	}
}

// databases returns the consumer's shards, or the consumer itself if there are none.
func (c *Consumer) databases() []*Consumer {
	if c.shards == nil {
		return []*Consumer{c}
	}
	return c.shards
}

// shardOf returns the shard that has a partition, or an error if the set names none.
func (c *Consumer) shardOf(topic string, partition int32) (*Consumer, error) {
	if c.shards == nil {
		return c, nil
	}
	db, err := c.set.OfPartition(topic, partition)
	if err != nil {
		return nil, err
	}
	return c.shards[slices.IndexFunc(c.shards, func(one *Consumer) bool { return one.shard == db.Name })], nil
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
		err := other.pool.QueryRow(ctx, otherShardSQL, w.c.cfg.Scope, w.id.Topic, w.id.Partition).Scan(&at, &retired, &topic, &partitions)
		if err != nil {
			return 0, fmt.Errorf("asking shard %q for a cursor of %s/%d: %w", other.shard, w.id.Topic, w.id.Partition, err)
		}
		if partitions != nil && (first == 0 || *partitions < first) {
			first = *partitions
		}
		another := topic.Valid && w.id.TopicID != [16]byte{} && topic.Bytes != w.id.TopicID
		if at == nil || (retired && cur != nil && (another || *at <= cur.highestPosition(w.id.TopicID))) {
			continue
		}
		if cur == nil {
			w.pos = *at
		}
		halt := w.haltError(HaltOtherShard, "shard %q has the cursor, at offset %d", other.shard, *at)
		switch {
		case retired && cur != nil:
			halt.otherAhead = true
			halt.Detail = fmt.Sprintf("shard %q had the cursor, which was retired at offset %d; in shard %q it stands at %d, which is behind, and would be handled again from there",
				other.shard, *at, w.c.shard, w.pos)
		case retired:
			halt.Detail = fmt.Sprintf("shard %q had the cursor, which was retired at offset %d, and shard %q has none", other.shard, *at, w.c.shard)
		}
		halt.Other, halt.otherRetired = other.shard, retired
		return 0, halt
	}
	return first, nil
}
