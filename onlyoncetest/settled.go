package onlyoncetest

import (
	"context"
	"time"
)

// unsettledSQL returns one row: whether calls will change by themselves. Nothing sends them if no
// relay has listed a sink.
const unsettledSQL = `
select exists (select from onlyonce.sinks) and exists (
  select from onlyonce.calls c
   where exists (select from onlyonce.sinks s where s.name = c.sink) and (c.state in ('pending', 'retrying')
      or c.state = 'blocked' and not exists (
           select from onlyonce.parked f where f.order_key = c.order_key and f.settled_at is null and f.state in ('waiting', 'reconcile'))))`

// unreadSQL returns one row: whether events wait for a consumer that has begun to read their
// stream.
const unreadSQL = `
select exists (
  select from (select s.topic, l.partition, max(l."offset") + 1 as next from onlyonce.event_log l join onlyonce.streams s on s.id = l.stream group by 1, 2) e
   where exists (select from onlyonce.cursors c where c.topic = e.topic)
     and not exists (select from onlyonce.positions p where p.topic = e.topic and p.partition = e.partition and p.next_offset >= e.next))`

// Nothing may work on what these return, one row each: whether calls have no relay, and whether
// events have no consumer.
const (
	noRelaySQL  = `select exists (select from onlyonce.outbox_log) and not exists (select from onlyonce.sinks)`
	noReaderSQL = `
select exists (select from onlyonce.event_log l join onlyonce.streams s on s.id = l.stream
                where not exists (select from onlyonce.cursors c where c.topic = s.topic))`
)

// grace is how long a clean run waits for a relay, or for a consumer of events, if it cannot know
// whether the program has one: it may be about to start. Later runs know.
const grace = 5 * time.Second

// unattended reports whether work has no part of the program that does it, although it should have
// one.
func (x *play) unattended(ctx context.Context) (bool, error) {
	for _, w := range []struct {
		sql   string
		never *bool
	}{{noRelaySQL, &x.c.noRelay}, {noReaderSQL, &x.c.noReader}} {
		if *w.never {
			continue
		}
		var without bool
		if err := x.db.Pool.QueryRow(ctx, w.sql).Scan(&without); err != nil {
			return false, err
		}
		if !without {
			continue
		}
		if x.idle.IsZero() {
			x.idle = time.Now()
		}
		if x.c.clean != nil || x.c.hasRelay && w.never == &x.c.noRelay {
			return true, nil
		}
		if time.Since(x.idle) < grace {
			return true, nil
		}
		*w.never = true
	}
	return false, nil
}

// owingSQL returns one row: whether parked messages will change by themselves. They are those that
// are retried, and those that wait although no message of their ordering key is in their way any
// more. $1 the scope, or null for each of them.
const owingSQL = `
select exists (
  select from onlyonce.parked p where p.kind in ('message', 'event') and p.settled_at is null and ($1::text is null or p.scope = $1) and (p.state = 'retrying'
      or p.state = 'blocked' and not exists (
           select from onlyonce.parked f where f.order_key = p.order_key and f.settled_at is null and f.state in ('waiting', 'reconcile'))))`

// atEndSQL returns one row: how many partitions of a topic have come to these offsets. $1
// partitions, $2 topics, $3 offsets.
const atEndSQL = `
select count(distinct (u.t, u.p)) from unnest($2::text[], $1::int[], $3::bigint[]) as u (t, p, o)
  join onlyonce.positions x on x.topic = u.t and x.partition = u.p and x.next_offset >= u.o`

// ownedSQL returns one row: how many partitions of a topic have a cursor, and whether a relay has
// begun. $1 partitions, $2 topics.
const ownedSQL = `
select count(distinct (u.t, u.p)), exists (select from onlyonce.lanes) from unnest($2::text[], $1::int[]) as u (t, p)
  join onlyonce.cursors x on x.topic = u.t and x.partition = u.p`

// toHandle returns the partitions that have messages, and the offsets at which they end.
func (x *play) toHandle() (topics []string, partitions []int32, offsets []int64) {
	for p := range x.logs.ends() {
		if p.offset > 0 {
			topics, partitions, offsets = append(topics, p.topic), append(partitions, p.partition), append(offsets, p.offset)
		}
	}
	return topics, partitions, offsets
}

// owned reports whether each partition that has messages has a cursor, and no relay has begun.
func (x *play) owned(ctx context.Context) (bool, error) {
	topics, partitions, _ := x.toHandle()
	var n int
	var relay bool
	err := x.db.Pool.QueryRow(ctx, ownedSQL, partitions, topics).Scan(&n, &relay)
	return n == len(topics) && !relay, err
}

// done reports whether all work is done.
func (x *play) done(ctx context.Context) (bool, error) {
	x.mu.Lock()
	served := x.served || x.c.Serve == nil
	x.mu.Unlock()
	if !served {
		return false, nil
	}
	topics, partitions, offsets := x.toHandle()
	var n int
	if err := x.db.Pool.QueryRow(ctx, atEndSQL, partitions, topics, offsets).Scan(&n); err != nil || n < len(topics) {
		return false, err
	}
	// First whether each part has begun to do its work: the queries below see nothing of work that
	// has no part yet.
	if without, err := x.unattended(ctx); err != nil || without {
		return false, err
	}
	var left bool
	for _, sql := range []string{unsettledSQL, unreadSQL} {
		if err := x.db.Pool.QueryRow(ctx, sql).Scan(&left); err != nil || left {
			return false, err
		}
	}
	err := x.db.Pool.QueryRow(ctx, owingSQL, nil).Scan(&left)
	return !left, err
}
