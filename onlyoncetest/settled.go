package onlyoncetest

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// unsettledSQL returns one row: whether calls will change by themselves. Nothing sends them if no
// relay has listed a sink.
const unsettledSQL = `
select exists (select from onlyonce.sinks) and exists (
  select from onlyonce.calls c
   where exists (select from onlyonce.sinks s where s.name = c.sink) and (c.state in ('pending', 'retrying')
      or c.state = 'blocked' and not exists (
           select from onlyonce.parked f
            where f.order_key = c.order_key and f.settled_at is null and f.state in ('waiting', 'reconcile'))))`

// unreadSQL returns one row: whether events wait for a consumer that has begun to read their
// stream.
const unreadSQL = `
select exists (
  select from (select s.topic, l.partition, max(l."offset") + 1 as next
                 from onlyonce.event_log l join onlyonce.streams s on s.id = l.stream group by 1, 2) e
   where exists (select from onlyonce.cursors c where c.topic = e.topic)
     and not exists (select from onlyonce.positions p
                      where p.topic = e.topic and p.partition = e.partition and p.next_offset >= e.next))`

// unsentSQL returns one row: whether calls wait for a relay that has not begun.
const unsentSQL = `select exists (select from onlyonce.batches) and not exists (select from onlyonce.sinks)`

// unbegunSQL returns one row: a topic with events that no consumer has begun to read, or null. $1
// topics.
const unbegunSQL = `
select min(s.topic) from onlyonce.event_log l join onlyonce.streams s on s.id = l.stream
 where s.topic = any ($1::text[]) and not exists (select from onlyonce.cursors c where c.topic = s.topic)`

// unbegun returns the part that has work and has not begun, if the program has one: the queries of
// done see nothing of its work yet. It returns "" if there is none.
func (x *play) unbegun(ctx context.Context, db pgx.Tx) (what string, err error) {
	if x.c.parts.sends() {
		var waits bool
		if err := db.QueryRow(ctx, unsentSQL).Scan(&waits); err != nil {
			return "", err
		}
		if waits {
			return "the relay", nil
		}
	}
	if topics := x.c.parts.reads(); len(topics) > 0 {
		var topic *string
		if err := db.QueryRow(ctx, unbegunSQL, topics).Scan(&topic); err != nil || topic == nil {
			return "", err
		}
		return "the consumer of " + *topic, nil
	}
	return "", nil
}

// owingSQL returns one row: whether parked messages will change by themselves. They are those that
// are retried, and those that wait although no message of their ordering key is in their way any
// more. $1 the scope, or null for each of them.
const owingSQL = `
select exists (
  select from onlyonce.parked p
   where p.id > 0
     and p.kind <> 'call'
     and p.settled_at is null
     and ($1::text is null or p.scope = $1)
     and (p.state = 'retrying'
      or p.state = 'blocked' and not exists (
           select from onlyonce.parked f
            where f.order_key = p.order_key and f.settled_at is null and f.state in ('waiting', 'reconcile'))))`

// atEndSQL returns one row: how many partitions of a topic have come to these offsets. $1
// partitions, $2 topics, $3 offsets.
const atEndSQL = `
select count(distinct (u.t, u.p)) from unnest($2::text[], $1::int[], $3::bigint[]) as u (t, p, o)
  join onlyonce.positions x on x.topic = u.t and x.partition = u.p and x.next_offset >= u.o`

// ownedSQL returns one row: how many partitions of a topic have a cursor. $1 partitions, $2 topics.
const ownedSQL = `
select count(distinct (u.t, u.p)) from unnest($2::text[], $1::int[]) as u (t, p)
  join onlyonce.cursors x on x.topic = u.t and x.partition = u.p`

// toHandle returns the partitions that have messages, and the offsets at which they end.
func (x *play) toHandle() (topics []string, partitions []int32, offsets []int64) {
	for p := range x.logs.ends() {
		if p.offset > 0 {
			topics = append(
				topics,
				p.topic,
			)
			partitions = append(partitions, p.partition)
			offsets = append(offsets, p.offset)
		}
	}
	return topics, partitions, offsets
}

// owned reports whether each partition that has messages has a cursor.
func (x *play) owned(ctx context.Context) (bool, error) {
	topics, partitions, _ := x.toHandle()
	var n int
	err := x.db.Pool.QueryRow(ctx, ownedSQL, partitions, topics).Scan(&n)
	return n == len(topics), err
}

// oneSnapshot is how done reads. If each statement had a snapshot of its own, an event that is
// handled between two of them could enqueue a call that neither sees: the one for calls was before
// it, and the one for events finds it handled. Then the relay is stopped, and the remote lacks the
// call.
var oneSnapshot = pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}

// done reports whether all work is done.
func (x *play) done(ctx context.Context) (bool, error) {
	x.mu.Lock()
	served := x.served || x.c.Serve == nil
	x.mu.Unlock()
	if !served || !x.acknowledged() {
		return false, nil
	}
	db, err := x.db.Pool.BeginTx(ctx, oneSnapshot)
	if err != nil {
		return false, err
	}
	defer func() { _ = db.Rollback(context.WithoutCancel(ctx)) }()
	topics, partitions, offsets := x.toHandle()
	var n int
	if err := db.QueryRow(ctx, atEndSQL, partitions, topics, offsets).Scan(&n); err != nil || n < len(topics) {
		return false, err
	}
	awaited, err := x.unbegun(ctx, db)
	x.mu.Lock()
	x.awaited = awaited
	x.mu.Unlock()
	if err != nil || awaited != "" {
		return false, err
	}
	var left bool
	for _, sql := range []string{unsettledSQL, unreadSQL} {
		if err := db.QueryRow(ctx, sql).Scan(&left); err != nil || left {
			return false, err
		}
	}
	err = db.QueryRow(ctx, owingSQL, nil).Scan(&left)
	return !left, err
}
