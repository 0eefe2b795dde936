package eventsource

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/claimed"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/lease"
)

// streamSQL reads a stream. In: topic. Out: at most one row: id, incarnation, partitions.
const streamSQL = `select id, incarnation, partitions from onlyonce.streams where topic = $1`

// boundsSQL reads a stream, and the first and next offsets of one of its partitions. In: topic,
// partition. Out: at most one row. The log must be locked before its snapshot, see reading.
const boundsSQL = `
select s.id,
       s.incarnation,
       s.partitions,
       b.first_offset,
       b.next_offset
  from onlyonce.streams s cross join lateral onlyonce.stream_bounds(s.id, $2::smallint) b where s.topic = $1`

// offsetAtSQL finds the first event of a time or later. In: stream, partition, time. Out: at most
// one row. By the unique indexes of the segments; it reads the events before that one, once for a
// partition.
const offsetAtSQL = `
select "offset"
  from onlyonce.event_log
 where stream = $1 and partition = $2::smallint and appended_at >= date_trunc('milliseconds', $3::timestamptz)
 order by "offset" limit 1`

// pageSQL reads events. In: stream, partition, first offset, bytes of bodies after which it stops.
// Out: rows by offset. By the unique indexes of the segments. Bodies that are stored out of line
// are measured without being read.
const pageSQL = `
select "offset",
       tenant,
       id,
       order_key,
       header_names,
       header_values,
       body,
       appended_at,
       erased_at is not null
  from (
    select x.*,
           sum(coalesce(octet_length(x.body), 0)) over (order by x."offset") - coalesce(
             octet_length(x.body),
             0
           ) as before
          from (select *
                  from onlyonce.event_log
                 where stream = $1 and partition = $2 and "offset" >= $3 order by "offset" limit 500) x) y
 where before < $4 order by "offset"`

// committedSQL reads what a group has committed. In: group, stream, partition. Out: at most one
// row.
const committedSQL = `
select "offset", metadata
  from onlyonce.stream_offsets
 where group_id = $1 and stream = $2 and partition = $3`

// groupMetadataSQL reads the metadata of what a group has committed. In: group, topics. Out: a row
// for each partition. By the primary key's first column.
const groupMetadataSQL = `
select s.topic, o.partition::integer, o.metadata
  from onlyonce.stream_offsets o join onlyonce.streams s on s.id = o.stream
 where o.group_id = $1 and s.topic = any ($2::text[])`

// commitSQL commits an offset under the partition's lease; see the function's comment in the
// migration.
const commitSQL = `
select onlyonce.commit_stream_offset(
  lease => $1,
  epoch => $2,
  nonce => $3::uuid,
  group_id => $4,
  stream => $5,
  partition => $6,
  "offset" => $7,
  metadata => $8
)`

const codeFenceLost = "OO001"

// streamRef is an incarnation of a stream.
type streamRef struct {
	id          int32
	incarnation [16]byte
	partitions  int16
}

// partition is one that this process holds.
type partition struct {
	s *Source
	partitionID
	acquired lease.Lease   // as it was acquired: its epoch and nonce prove ownership
	polls    *atomic.Int64 // polls of the ends that were begun
	ctx      context.Context
	cancel   context.CancelCauseFunc

	mu     sync.Mutex
	stream streamRef // that Identity named

	caughtUpAt    atomic.Int64 // end of the log when it was last read; -1: not there yet
	unchangedPoll atomic.Int64 // the last poll that found it so
	wakeup        chan struct{}

	// Written by own's goroutine before it ends.
	err   error
	alive bool

	// Of the member's goroutine.
	lease    *lease.Lease
	giveUpAt time.Time
	released bool
}

// giveUp ends own's context.
func (p *partition) giveUp(cause error) {
	if p.giveUpAt.IsZero() {
		p.giveUpAt = time.Now()
		p.cancel(cause)
	}
}

// noteEnd notes what a poll found.
func (p *partition) noteEnd(poll int64, n partitionEnd) {
	p.mu.Lock()
	same := n.Incarnation.Valid && n.Incarnation.Bytes == p.stream.incarnation
	p.mu.Unlock()
	if same && n.End == p.caughtUpAt.Load() {
		p.unchangedPoll.Store(poll)
		return
	}
	select {
	case p.wakeup <- struct{}{}:
	default: // notified already
	}
}

func (p *partition) currentStream() streamRef {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stream
}

// Identity implements source.Partition.
func (p *partition) Identity(ctx context.Context) (source.Identity, error) {
	var s streamRef
	var incarnation pgtype.UUID
	ctx, cancel := p.bounded(ctx)
	defer cancel()
	err := p.s.pool.QueryRow(ctx, streamSQL, p.topic).Scan(&s.id, &incarnation, &s.partitions)
	if errors.Is(err, pgx.ErrNoRows) {
		err = fmt.Errorf("%w: %s", ErrNoStream, p.topic)
	}
	if err != nil {
		return source.Identity{}, err
	}
	s.incarnation = incarnation.Bytes
	p.mu.Lock()
	p.stream = s
	p.mu.Unlock()
	p.caughtUpAt.Store(-1)
	return source.Identity{
		ClusterID:      ClusterID,
		TopicID:        s.incarnation,
		TopicPartition: source.TopicPartition{Topic: p.topic, Partition: int32(p.nr)},
		Partitions:     int32(s.partitions),
		Compacted:      true,
	}, nil // events may be erased
}

// Committed implements source.Partition.
func (p *partition) Committed(ctx context.Context) (offset int64, metadata string, err error) {
	ctx, cancel := p.bounded(ctx)
	defer cancel()
	err = p.s.pool.QueryRow(ctx, committedSQL, p.s.cfg.Group, p.currentStream().id, p.nr).Scan(&offset, &metadata)
	if errors.Is(err, pgx.ErrNoRows) {
		return -1, "", nil
	}
	return offset, metadata, err
}

// Commit implements source.Partition.
func (p *partition) Commit(ctx context.Context, offset int64, metadata string) error {
	ctx, cancel := p.bounded(ctx)
	defer cancel()
	_, err := p.s.pool.Exec(
		ctx,
		commitSQL,
		p.acquired.ID,
		p.acquired.Epoch,
		p.acquired.Nonce,
		p.s.cfg.Group,
		p.currentStream().id,
		p.nr,
		offset,
		metadata,
	)
	if guard.SQLState(err) == codeFenceLost {
		return fmt.Errorf("%w: %w", source.ErrOwnershipLost, err)
	}
	return err
}

// readTimeout bounds queries, together with LeaseTTL. If a server disappears without closing the
// connection, the partition must not wait until TCP finds out.
const readTimeout = 15 * time.Second

func (p *partition) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(p.s.cfg.LeaseTTL, readTimeout))
}

// readBounds reads the partition's first and next offsets, together with what more queues.
func (p *partition) readBounds(
	ctx context.Context,
	more func(b *pgx.Batch, s streamRef),
) (start, end int64, err error) {
	known := p.currentStream()
	found := false
	ctx, cancel := p.bounded(ctx)
	defer cancel()
	err = queryLog(ctx, p.s.pool, true, func(b *pgx.Batch) {
		b.Queue(boundsSQL, p.topic, p.nr).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var s streamRef
				var incarnation pgtype.UUID
				if err := rows.Scan(&s.id, &incarnation, &s.partitions, &start, &end); err != nil {
					return err
				}
				found = incarnation.Bytes == known.incarnation
			}
			return rows.Err()
		})
		if more != nil {
			more(b, known)
		}
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: stream %s", source.ErrIncarnation, p.topic)
	}
	return start, end, err
}

// Bounds implements source.Partition.
func (p *partition) Bounds(ctx context.Context) (source.Bounds, error) {
	start, end, err := p.readBounds(ctx, nil)
	return source.Bounds{Start: start, End: end, LeaderEpoch: -1}, err
}

// OffsetAt returns the offset of the first event of a time or later, -1 if there is none.
func OffsetAt(ctx context.Context, tx pgx.Tx, topic string, partition int32, t time.Time) (offset int64, err error) {
	err = tx.QueryRow(ctx, `select coalesce((`+strings.Replace(
		offsetAtSQL,
		"$1",
		"(select id from onlyonce.streams where topic = $1)",
		1,
	)+`), -1)`,
		topic, partition, t).Scan(&offset)
	return offset, err
}

// OffsetAt implements source.Partition.
func (p *partition) OffsetAt(ctx context.Context, t time.Time) (int64, error) {
	found := int64(-1)
	_, end, err := p.readBounds(ctx, func(b *pgx.Batch, s streamRef) {
		b.Queue(offsetAtSQL, s.id, p.nr, t).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				if err := rows.Scan(&found); err != nil {
					return err
				}
			}
			return rows.Err()
		})
	})
	if err == nil && found < 0 {
		found = end
	}
	return found, err
}

// Verify implements source.Partition. The log has no leader epochs. If a failover loses events,
// it loses the positions after them too.
func (p *partition) Verify(context.Context, int64, int32) error { return nil }

// Retained implements source.Partition. Events that a cursor has not passed are not deleted by
// time.
func (p *partition) Retained(ctx context.Context, offset int64) (time.Time, error) {
	start, end, err := p.readBounds(ctx, nil)
	if err == nil && (offset < start || offset > end) {
		err = &source.OutOfRangeError{Offset: offset, Start: start, End: end}
	}
	return time.Time{}, err
}

// Fetch implements source.Partition. At the log's end it does not ask the database: one poll of
// the source looks for all partitions.
func (p *partition) Fetch(ctx context.Context, from int64, most int) (source.Fetched[*consumer.Message], error) {
	if from == p.caughtUpAt.Load() {
		if unchanged, err := p.waitForEvents(ctx); err != nil {
			return source.Fetched[*consumer.Message]{}, err
		} else if unchanged {
			return source.Fetched[*consumer.Message]{
				Next:          from,
				LeaderEpoch:   -1,
				HighWatermark: from,
				LastStable:    from,
			}, nil
		}
	}
	f := source.Fetched[*consumer.Message]{Next: from, LeaderEpoch: -1}
	start, end, err := p.readBounds(ctx, func(b *pgx.Batch, s streamRef) {
		b.Queue(pageSQL, s.id, p.nr, from, min(p.s.cfg.FetchBytes, most)).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				m, erased, err := p.scanMessage(rows)
				if err != nil {
					return err
				}
				// The first message comes in any case, whatever its size (F14): the position never
				// passes a row for want of room.
				if most -= m.Size(); most < 0 && len(f.Messages) > 0 {
					break
				}
				f.Next = m.Offset + 1
				if !erased {
					f.Messages = append(f.Messages, m)
				}
			}
			return rows.Err()
		})
	})
	switch {
	case err != nil:
		return source.Fetched[*consumer.Message]{}, err
	case from < start || from > end:
		return source.Fetched[*consumer.Message]{}, &source.OutOfRangeError{Offset: from, Start: start, End: end}
	case f.Next == from: // nothing, or offsets that were left out before the end
		f.Next = end
	}
	// The log has no open transactions: offsets are given out at COMMIT.
	f.HighWatermark = end
	f.LastStable = end
	p.caughtUpAt.Store(-1)
	if f.Next == end {
		p.caughtUpAt.Store(end)
	}
	return f, nil
}

// waitForEvents returns when there may be something to read, or true when a poll that was begun
// meanwhile has found nothing. If no poll ends in time, the caller asks the database, which may be
// gone.
func (p *partition) waitForEvents(ctx context.Context) (unchanged bool, err error) {
	before := p.polls.Load()
	t := time.NewTimer(p.s.cfg.PollInterval + p.s.cfg.PollInterval/4)
	defer t.Stop()
	select {
	case <-p.wakeup:
		return false, nil
	case <-t.C:
		return p.unchangedPoll.Load() > before, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (p *partition) scanMessage(rows pgx.Rows) (m *consumer.Message, erased bool, err error) {
	m = &consumer.Message{Topic: p.topic, Partition: int32(p.nr), LogAppendTime: true, LeaderEpoch: -1}
	var names []string
	var values [][]byte
	var tenant, id string
	if err := rows.Scan(&m.Offset, &tenant, &id, &m.Key, &names, &values, &m.Value, &m.Time, &erased); err != nil {
		return nil, false, err
	}
	claimed.Set(m, tenant, id)
	for i, name := range names {
		m.Headers = append(m.Headers, consumer.Header{Name: name, Value: values[i]})
	}
	return m, erased, nil
}
