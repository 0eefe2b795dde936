package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/test/check"
)

// queryer is a pool, a connection or a transaction.
type queryer interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// positionsSQL returns a row for each cursor: partition, next offset. $1 the scope.
const positionsSQL = `select partition, next_offset from onlyonce.positions where scope = $1`

func (s *storm) positions(ctx context.Context, q queryer) (map[int32]int64, error) {
	rows, err := q.Query(ctx, positionsSQL, s.topic)
	if err != nil {
		return nil, err
	}
	at := map[int32]int64{}
	var partition int32
	var next int64
	_, err = pgx.ForEachRow(rows, []any{&partition, &next}, func() error { at[partition] = next; return nil })
	return at, err
}

// positionsAt reads from one server, wherever the forwarder points.
func (s *storm) positionsAt(ctx context.Context, url string) (at map[int32]int64, err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	at, err = s.positions(ctx, conn)
	return at, errors.Join(err, conn.Close(ctx))
}

// doneSQL returns a row for each message that is done above its cursor's position: partition,
// offset. $1 the scope.
const doneSQL = `
select p.partition, d."offset"
  from onlyonce.positions p join onlyonce.done d on d.cursor_id = p.id and d.run = p.run and d."offset" >= p.next_offset
 where p.scope = $1`

// lastEffectSQL returns one row: the number of the last effect.
const lastEffectSQL = `select coalesce(max(n), 0) from storm.effects`

// takeMark reads from a server that was just promoted, before a worker writes to it.
func (s *storm) takeMark(ctx context.Context, url string, before map[int32]int64) (m mark, err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	if m.positions, err = s.positions(ctx, conn); err != nil {
		return m, err
	}
	for p, at := range before {
		m.lost += at - m.positions[p]
	}
	m.done = map[int32][]int64{}
	var partition int32
	var offset int64
	if err := each(ctx, conn, doneSQL, s.topic, []any{&partition, &offset}, func() {
		m.done[partition] = append(m.done[partition], offset)
	}); err != nil {
		return m, err
	}
	return m, conn.QueryRow(ctx, lastEffectSQL).Scan(&m.lastN)
}

// ends returns the end of each partition's log.
func (s *storm) ends(ctx context.Context) (map[int32]int64, error) {
	listed, err := s.admin.ListEndOffsets(ctx, s.topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return nil, err
	}
	ends := map[int32]int64{}
	for p, o := range listed[s.topic] {
		ends[p] = o.Offset
	}
	if len(ends) != s.opts.partitions {
		return nil, fmt.Errorf("%d of %d partitions answer", len(ends), s.opts.partitions)
	}
	return ends, nil
}

func (s *storm) committed(ctx context.Context) (map[int32]int64, error) {
	fetched, err := s.admin.FetchOffsets(ctx, s.topic)
	if err != nil {
		return nil, err
	}
	at := map[int32]int64{}
	for p, o := range fetched[s.topic] {
		if o.Err != nil {
			return nil, o.Err
		}
		at[p] = o.At
	}
	return at, nil
}

// sampleSQL returns one row: effects that ask for a call, rows of the outbox, effects whose record
// their cursor has neither passed nor as done above its position.
const sampleSQL = `
select (select count(*) from storm.effects where scope = $1 and called),
       (select count(*) from onlyonce.outbox_log where sink = $1),
       (select count(*)
          from storm.effects e
          join onlyonce.positions p on p.scope = e.scope and p.partition = e.part
         where e.scope = $1 and e.off >= p.next_offset
           and not exists (select from onlyonce.done d
                            where d.cursor_id = p.id and d.run = p.run and d."offset" = e.off))`

// sample checks one committed snapshot in the middle of the storm. Effects, calls and positions
// agree at every moment (I4). Kafka's committed offset is never ahead of the position (I7), except
// between a lossy failover and the end of the redo. If a server is down, there is nothing to check.
func (s *storm) sample(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	committed, err := s.committed(ctx) // before the position, which only grows
	if err != nil {
		committed = nil
	}
	_ = pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		var asking, calls, beyond int
		if err := tx.QueryRow(ctx, sampleSQL, s.topic).Scan(&asking, &calls, &beyond); err != nil {
			return err
		}
		at, err := s.positions(ctx, tx)
		if err != nil {
			return err
		}
		if asking != calls {
			s.Breaches = append(
				s.Breaches,
				fmt.Sprintf("I4 in one snapshot: %d effects ask for a call, and %d calls are in the outbox", asking, calls),
			)
		}
		if beyond > 0 {
			s.Breaches = append(s.Breaches, fmt.Sprintf("I4 in one snapshot: %d effects of records that the cursor has not passed", beyond))
		}
		for p, offset := range committed {
			if offset > at[p] && !s.opts.failover {
				s.Breaches = append(
					s.Breaches,
					fmt.Sprintf("I7 partition %d: Kafka's committed offset %d is ahead of the position %d", p, offset, at[p]),
				)
			}
		}
		return nil
	})
}

// sessionsSQL returns one row: how many other sessions the database has.
const sessionsSQL = `
select count(*)
  from pg_stat_activity
 where backend_type = 'client backend' and datname = current_database() and pid <> pg_backend_pid()`

// quiet waits until no connection of a worker is left (I14).
func (s *storm) quiet(ctx context.Context) error {
	s.pool.Reset() // ours are no workers'
	var n int
	err := s.Until(ctx, "connections to end", func(ctx context.Context) (bool, error) {
		err := s.pool.QueryRow(ctx, sessionsSQL).Scan(&n)
		return n == 0, err
	})
	if err != nil {
		s.Breaches = append(s.Breaches, fmt.Sprintf("I14 %d connections are left to Postgres", n))
	}
	return ctx.Err()
}

// judge collects the outcome, and judges it.
func (s *storm) judge(ctx context.Context, r *report) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	f, err := s.collect(ctx)
	if err != nil {
		return fmt.Errorf("reading the outcome: %w", err)
	}
	v := check.Judge(f)
	if err := s.redone(ctx, &v); err != nil {
		return fmt.Errorf("reading the outcome: %w", err)
	}
	if err := s.judgeMixed(ctx, r); err != nil {
		return fmt.Errorf("reading the outcome: %w", err)
	}
	delivered, refetched, err := s.Fleet.Delivered()
	if err != nil {
		return fmt.Errorf("reading the outcome: %w", err)
	}
	r.Produced = len(f.History.Log)
	r.Delivered = delivered
	r.Redelivered = refetched
	r.Effects, r.Parked = check.Sum(f.Effects), check.Sum(f.Parked)
	r.Duplicates = r.Produced - r.Effects - r.Parked
	r.Retried = len(f.History.Resolved)
	for _, fault := range v.Faults {
		r.Breaches = append(r.Breaches, fault.Rule+" "+fault.String())
	}
	r.Breaches = append(r.Breaches, s.Breaches...)
	r.OK = len(r.Breaches) == 0
	return nil
}

// redoneSQL returns one row, with two counts. The first is of effects that were written after a
// failover although the promoted server's position was beyond their record. The second is of the
// promoted server's effects at offsets that should have none. Messages that were parked meanwhile
// and applied from there are not counted. $1 scope, $2 partition, $3 the last effect that it knew,
// $4 its position, $5 what was done above that.
const redoneSQL = `
select count(*) filter (where n > $3 and (off < $4 or off = any(coalesce($5::bigint[], '{}')))),
       count(*) filter (where n <= $3 and off >= $4 and not off = any(coalesce($5::bigint[], '{}')))
  from storm.effects where scope = $1 and part = $2
   and off not in (select "offset" from onlyonce.parked where scope = $1 and partition = $2 and "offset" is not null)`

// redone checks that after each failover the lost part was done again, and no more.
func (s *storm) redone(ctx context.Context, v *check.Verdict) error {
	for i, m := range s.marks {
		for partition, position := range m.positions {
			var again, early int
			if err := s.pool.QueryRow(ctx, redoneSQL, s.topic, partition, m.lastN, position, m.done[partition]).Scan(
				&again,
				&early,
			); err != nil {
				return err
			}
			if again+early > 0 {
				v.Note("I2", fmt.Sprintf("failover %d did not redo exactly what was lost", i+1),
					[]string{fmt.Sprintf("partition %d: %d effects below position %d written after it, %d above it before",
						partition, again, position, early)})
			}
		}
	}
	return nil
}

// effectsSQL returns a row for each effect, in the order in which they came.
const effectsSQL = `
select id,
       key,
       seq,
       part,
       off
  from storm.effects where scope = $1 order by n`

// parkedSQL returns a row for each message that was ever parked: the place of its record, and its
// outcome.
const parkedSQL = `select partition, "offset", state, settled_at is not null from onlyonce.parked where scope = $1 and kind = 'message'`

// callsSQL returns a row for each call: target.
const callsSQL = `select target from onlyonce.outbox_log where sink = $1`

// collect reads what the run has left. No process writes any more.
func (s *storm) collect(ctx context.Context) (f check.Facts, err error) {
	h := &check.History{
		Claimed: map[string]bool{}, Calls: map[string]int{},
		WithCall: func(id string) bool { return s.stream.byID[id].withCall() },
		Faulty:   func(id string) bool { return s.stream.byID[id].faulty() },
		ByKey:    s.opts.policy == policyKey,
	}
	f = check.Facts{Effects: map[string]int{}, Parked: map[string]int{}, History: h}
	for _, m := range s.stream.messages {
		if s.producer.acked[m.ID] {
			f.IDs = append(f.IDs, m.ID)
		} else {
			f.Unknown = append(f.Unknown, m.ID)
		}
	}
	if h.Ends, err = s.ends(ctx); err != nil {
		return f, err
	}
	if h.Committed, err = s.committed(ctx); err != nil {
		return f, err
	}
	if h.Log, err = s.readLog(ctx, h.Ends); err != nil {
		return f, err
	}
	byPlace := make(map[place]string, len(h.Log))
	for _, r := range h.Log {
		byPlace[place{r.Partition, r.Offset}] = r.ID
	}
	if h.Cursor, err = s.positions(ctx, s.pool); err != nil {
		return f, err
	}
	var e check.Effect
	if err = each(ctx, s.pool, effectsSQL, s.topic, []any{&e.ID, &e.Key, &e.Seq, &e.Partition, &e.Offset}, func() {
		h.Applied = append(h.Applied, e)
		f.Effects[e.ID]++
	}); err != nil {
		return f, err
	}
	var at place
	var state string
	var settled bool
	if err = each(ctx, s.pool, parkedSQL, s.topic, []any{&at.partition, &at.offset, &state, &settled}, func() {
		id, known := byPlace[at]
		if !known {
			id = fmt.Sprintf("no record at %d/%d", at.partition, at.offset)
		}
		if settled {
			h.Resolved = append(h.Resolved, id)
			return
		}
		f.Parked[id]++
		h.Parked = append(h.Parked, check.Parked{
			ID:        id,
			Key:       s.stream.byID[id].Key,
			Partition: at.partition,
			Offset:    at.offset,
			State:     state,
		})
	}); err != nil {
		return f, err
	}
	var target string
	if err = each(ctx, s.pool, callsSQL, s.topic, []any{&target}, func() { h.Calls[target[1:]]++ }); err != nil {
		return f, err
	}
	if s.opts.positions {
		h.Claimed = nil
		return f, nil
	}
	return f, s.readInbox(ctx, h.Claimed)
}

// place is the partition and offset of a record.
type place struct {
	partition int32
	offset    int64
}

func each(ctx context.Context, pool queryer, sql, scope string, into []any, do func()) error {
	rows, err := pool.Query(ctx, sql, scope)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, into, func() error { do(); return nil })
	return err
}

// readInbox finds out which keys are claimed.
func (s *storm) readInbox(ctx context.Context, claimed map[string]bool) error {
	ids := slices.Clone(s.stream.aborted)
	for _, m := range s.stream.messages {
		ids = append(ids, m.ID)
	}
	for part := range slices.Chunk(ids, 5000) {
		keys := make([]uuid.UUID, len(part))
		of := make(map[uuid.UUID]string, len(part))
		for i, id := range part {
			keys[i] = dedupe.Key{Scope: s.topic, ID: id, Fingerprint: dedupe.NoFingerprint}.Hash()
			of[keys[i]] = id
		}
		rows, err := s.pool.Query(ctx, `select key from onlyonce.inbox where key = any($1)`, keys)
		if err != nil {
			return err
		}
		var key uuid.UUID
		if _, err := pgx.ForEachRow(rows, []any{&key}, func() error { claimed[of[key]] = true; return nil }); err != nil {
			return err
		}
	}
	return nil
}

// readLog reads the topic from its beginning, as a reader of committed records does.
func (s *storm) readLog(ctx context.Context, ends map[int32]int64) ([]check.Record, error) {
	from := map[int32]kgo.Offset{}
	next := map[int32]int64{}
	for p := range ends {
		from[p] = kgo.NewOffset().At(0)
		next[p] = 0
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.kafka.Brokers...), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // they show that we have passed an aborted end
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{s.topic: from}))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	var log []check.Record
	for {
		done := true
		for p, end := range ends {
			done = done && next[p] >= end
		}
		if done {
			break
		}
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return nil, err
		}
		for _, e := range fetches.Errors() {
			return nil, e.Err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			next[r.Partition] = r.Offset + 1
			if r.Attrs.IsControl() {
				return
			}
			id := ""
			for _, h := range r.Headers {
				if h.Key == idHeader {
					id = string(h.Value)
				}
			}
			log = append(log, check.Record{ID: id, Partition: r.Partition, Offset: r.Offset})
		})
	}
	return log, nil
}
