package consumer

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/presence"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/ready"
)

const (
	pollEvery = 1 * time.Second // how often a process asks for changes by operators and time
	// reportEvery is how often it writes an unchanged row of onlyonce.owners.
	reportEvery = presence.Every
)

// pollSQL is what a process asks the database regularly, in one statement for all partitions that
// it owns there. In: scope; for each partition its topic, number, cursor, epoch, nonce, run and
// frontier to record (null: none); then the process's row of onlyonce.owners: id, host, pid, and
// its partitions and faults as JSON (null: not this time).
//
// Out: one row for each partition, with its index in the arrays from 1, whether the lease is still
// this owner's, the position, whether an operator has paused the partition, in how many seconds its
// next parked row is due (null: none is), whether the frontier was recorded, and the database's
// clock. By primary keys and the indexes parked_due and parked_order. A row that waits for an
// unsettled one of its ordering key is not due, whatever its time: takeParkedSQL does not take it.
//
// A frontier is recorded for the present owner only, and not while a take-over holds the lease. The
// next poll tries again then, so that one partition never holds up the others. If an operator has
// begun another run, a frontier from before means nothing; neither does one that is ahead of the
// clock (K6).
const pollSQL = `
with asked as (
  select * from unnest(
    $2::text[],
    $3::integer[],
    $4::bigint[],
    $5::bigint[],
    $6::uuid[],
    $7::integer[],
    $8::timestamptz[]
  )
           with ordinality as a (topic, partition, cursor_id, epoch, nonce, run, frontier, n)),
held as (
  select l.id from asked a join onlyonce.leases l on l.id = a.cursor_id and l.epoch = a.epoch and l.nonce = a.nonce
   where a.frontier is not null for share of l skip locked),
noted as (
  insert into onlyonce.frontiers as f (cursor_id, run, frontier)
  select a.cursor_id, a.run, a.frontier
    from asked a join held on held.id = a.cursor_id where a.frontier <= clock_timestamp()
  on conflict (cursor_id) do update set run = excluded.run,
    frontier = case when f.run = excluded.run
                      and f.frontier <= clock_timestamp() then greatest(f.frontier, excluded.frontier)
                    else excluded.frontier end
  returning f.cursor_id),
reported as (
  insert into onlyonce.owners as o (
    id,
    scope,
    host,
    pid,
    partitions,
    faults
  )
  select $9::uuid,
         $1::text,
         $10::text,
         $11::integer,
         $12::text::jsonb,
         $13::text::jsonb
   where $12::text is not null
  on conflict (id) do update
     set seen_at = clock_timestamp(), partitions = excluded.partitions, faults = excluded.faults),
forgotten as (
  delete from onlyonce.owners
   where $12::text is not null
     and part = 'consumer'
     and scope = $1::text
     and seen_at < clock_timestamp() - interval '1 day')
select a.n,
       exists (select 1 from onlyonce.leases l where l.id = a.cursor_id and l.epoch = a.epoch and l.nonce = a.nonce),
       coalesce((select p.next_offset from onlyonce.positions p where p.id = a.cursor_id), -1),
       exists (select 1
                 from onlyonce.pauses p
                where p.scope = $1::text and p.topic in ('', a.topic) and p.partition in (-1, a.partition)),
       (select extract(epoch from p.next_attempt_at - clock_timestamp())::float8 from onlyonce.parked p
         where p.scope = $1::text and p.topic = a.topic and p.partition = a.partition and p.state = 'retrying'
           and not exists (select 1 from onlyonce.parked f
                            where f.order_key = p.order_key
                              and f.settled_at is null
                              and (f.partition, f."offset") < (p.partition, p."offset")
                           offset 0)
         order by p.next_attempt_at limit 1),
       exists (select 1 from noted n where n.cursor_id = a.cursor_id),
       clock_timestamp()
  from asked a`

// deleteOwnerSQL deletes the process's row of onlyonce.owners. In: its id.
const deleteOwnerSQL = `delete from onlyonce.owners where id = $1`

// pollAnswer is the answer of one poll about a partition.
type pollAnswer struct {
	owned            bool // the lease is this owner's
	position         int64
	knownPosition    int64 // the position that this process knew before it polled
	paused           bool
	due              *float64 // seconds until the next parked row is due; nil: none is
	frontierRecorded bool     // the frontier was recorded
	clock            time.Time
	arrived          time.Time // when the answer arrived
	err              error
}

// decision returns what the answer means for the work: errMoved, errPaused, the error of the poll,
// or nil.
func (a *pollAnswer) decision() error {
	switch {
	case a.err != nil:
		return a.err
	// An idle partition has no fence that would raise; the next read of the cursor decides.
	case !a.owned, a.position < a.knownPosition:
		return errMoved
	case a.paused:
		return errPaused
	}
	return nil
}

// polledPartition is a partition that the poller asks about, from when its owner joins until it
// leaves.
type polledPartition struct {
	id      source.Identity
	cur     *cursor
	state   *partitionState
	answers chan pollAnswer // the latest answer; capacity 1

	mu       sync.Mutex
	frontier *time.Time // to be recorded
}

// setFrontier makes the next polls record a frontier; nil: none.
func (p *polledPartition) setFrontier(frontier *time.Time) {
	p.mu.Lock()
	p.frontier = frontier
	p.mu.Unlock()
}

// deliver replaces an answer that was not read by a newer one.
func (p *polledPartition) deliver(a pollAnswer) {
	for {
		select {
		case p.answers <- a:
			return
		default:
		}
		select {
		case <-p.answers:
		default:
		}
	}
}

// poller asks one database regularly about all partitions that this process owns there: one
// statement a second, however many they are. The statement also writes what the process knows of
// them.
type poller struct {
	c    *Consumer
	id   pgtype.UUID
	host string
	wake chan struct{}

	mu      sync.Mutex
	members map[*polledPartition]struct{}

	reportedAt    time.Time // when the process's row was last written; zero: never
	reportedShape string    // of the row that was written then

	righting *parked.Righting

	group, handlers ready.Link // the process's own faults, and since when

	announced   map[source.TopicPartition]int64 // the epochs under which partitions are owned, as logged
	announcedAt time.Time
}

func newPoller(c *Consumer) *poller {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return &poller{
		c:        c,
		id:       newNonce(),
		host:     host,
		wake:     make(chan struct{}, 1),
		members:  map[*polledPartition]struct{}{},
		righting: parked.NewRighting(c.cfg.Logger.With("scope", c.cfg.Scope)),
	}
}

// join adds a partition, and makes the poller ask at once. The caller ends that with leave.
func (p *poller) join(id source.Identity, cur *cursor, state *partitionState) *polledPartition {
	m := &polledPartition{id: id, cur: cur, state: state, answers: make(chan pollAnswer, 1)}
	p.mu.Lock()
	p.members[m] = struct{}{}
	p.mu.Unlock()
	p.pollSoon()
	return m
}

// leave ends what join began: the partition gets no more answers.
func (p *poller) leave(m *polledPartition) {
	p.mu.Lock()
	delete(p.members, m)
	p.mu.Unlock()
}

// pollSoon makes the poller ask at once, for example because a partition was added or its state has
// changed.
func (p *poller) pollSoon() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// pollUntilDone polls until ctx is done, and then deletes the process's row.
func (p *poller) pollUntilDone(ctx context.Context) {
	retry := newBackoff(p.c.cfg)
	wait := time.Duration(0)
	for {
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-p.wake:
		case <-ctx.Done():
		}
		t.Stop()
		if ctx.Err() != nil {
			break
		}
		wait = pollEvery
		if err := p.pollOnce(ctx); err != nil {
			wait = max(primary.Wait(err, retry.NextBackOff()), pollEvery)
		} else {
			retry.Reset()
		}
	}
	if p.reportedAt.IsZero() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.c.cfg.Timeouts.Lock)
	defer cancel()
	if _, err := p.c.pool.Exec(ctx, deleteOwnerSQL, p.id); err != nil {
		p.c.cfg.Logger.Warn("onlyonce: the process's row of onlyonce.owners was not deleted; it is ignored "+
			"once it is old", "scope", p.c.cfg.Scope, "error", err)
	}
}

// pollOnce asks once, and passes each partition its answer (F1).
func (p *poller) pollOnce(ctx context.Context) error {
	p.mu.Lock()
	members := make([]*polledPartition, 0, len(p.members))
	for m := range p.members {
		members = append(members, m)
	}
	p.mu.Unlock()
	var known *string // no report of this shape is due
	if !p.reportedAt.IsZero() && time.Since(p.reportedAt) < reportEvery {
		known = &p.reportedShape
	}
	p.announce()
	report, err := p.c.statusReport(&p.group, &p.handlers, known)
	if err != nil {
		return err
	}
	if len(members) == 0 && report == nil {
		return nil
	}
	if report != nil && !time.Now().Before(p.righting.Due()) {
		p.rightDueTimes(ctx)
	}
	answers, err := p.query(ctx, members, report)
	if err != nil {
		err = fmt.Errorf("polling partition state: %w", err)
		if ctx.Err() != nil {
			return err
		}
	} else if report != nil {
		p.reportedAt = time.Now()
		p.reportedShape = report.shape
	}
	for i, m := range members {
		if err != nil {
			m.deliver(pollAnswer{err: err})
		} else {
			m.deliver(answers[i])
		}
	}
	return err
}

// rightDueTimes has parked rows wait anew whose due times were written while the clock was ahead
// (T9). It is due again if it fails, and the poll that follows says why.
func (p *poller) rightDueTimes(ctx context.Context) {
	bounded, cancel := p.c.bounded(ctx)
	defer cancel()
	_ = p.righting.Run(bounded, p.c.pool.Pinned())
}

// mostAnnounced is how many partitions a log line names.
const mostAnnounced = 20

// announce logs, in one line for all of the last second, which partitions this process has taken
// over, from where on, and which it has given up.
func (p *poller) announce() {
	if time.Since(p.announcedAt) < pollEvery {
		return
	}
	p.announcedAt = time.Now()
	owned := map[source.TopicPartition]int64{}
	var taken, gone []string
	for _, s := range p.c.partitions.snapshot() {
		if s.Shard != p.c.shard || s.Epoch == 0 {
			continue
		}
		owned[s.TopicPartition] = s.Epoch
		if p.announced[s.TopicPartition] != s.Epoch {
			taken = append(taken, fmt.Sprintf("%s/%d from %d", s.Topic, s.Partition, s.takenAt))
		}
	}
	for at := range p.announced {
		if _, still := owned[at]; !still {
			gone = append(gone, fmt.Sprintf("%s/%d", at.Topic, at.Partition))
		}
	}
	p.announced = owned
	if len(taken)+len(gone) == 0 {
		return
	}
	slices.Sort(gone)
	args := []any{"scope", p.c.cfg.Scope, "group", p.c.source.Group(), "owned", len(owned)}
	for _, of := range []struct {
		name string
		list []string
	}{{"taken", taken}, {"given_up", gone}} {
		if more := len(of.list) - mostAnnounced; more > 0 {
			of.list = append(of.list[:mostAnnounced], fmt.Sprintf("%d more", more))
		}
		if len(of.list) > 0 {
			args = append(args, of.name, strings.Join(of.list, ", "))
		}
	}
	p.c.cfg.Logger.Info("onlyonce: partitions of this process", args...)
}

func (p *poller) query(ctx context.Context, members []*polledPartition, report *statusReport) ([]pollAnswer, error) {
	n := len(members)
	answers := make([]pollAnswer, n)
	topics := make([]string, n)
	for i, m := range members {
		topics[i] = m.id.Topic
		// Read before the query: the database is at least there, unless a failover has lost
		// commits.
		answers[i].knownPosition = m.state.position.Load()
	}
	var partitions, faults *string
	if report != nil {
		partitions = &report.partitions
		faults = &report.faults
	}
	ctx, cancel := p.c.bounded(ctx)
	defer cancel()
	rows, err := p.c.pool.Query(ctx, pollSQL, p.c.cfg.Scope, topics,
		codec.Array(n, func(i int) pgtype.Int4 { return pgtype.Int4{Int32: members[i].id.Partition, Valid: true} }),
		codec.Array(n, func(i int) pgtype.Int8 { return pgtype.Int8{Int64: members[i].cur.id, Valid: true} }),
		codec.Array(n, func(i int) pgtype.Int8 { return pgtype.Int8{Int64: members[i].cur.epoch, Valid: true} }),
		codec.Array(n, func(i int) pgtype.UUID { return members[i].cur.nonce }),
		codec.Array(n, func(i int) pgtype.Int4 { return pgtype.Int4{Int32: members[i].cur.run, Valid: true} }),
		codec.Array(n, func(i int) pgtype.Timestamptz { return members[i].frontierToRecord() }),
		p.id, p.host, int32(os.Getpid()), partitions, faults)
	if err != nil {
		return nil, err
	}
	var at int64
	var a pollAnswer
	_, err = pgx.ForEachRow(
		rows,
		[]any{&at, &a.owned, &a.position, &a.paused, &a.due, &a.frontierRecorded, &a.clock},
		func() error {
			a.knownPosition = answers[at-1].knownPosition
			answers[at-1] = a
			return nil
		},
	)
	now := time.Now()
	for i := range answers {
		answers[i].arrived = now
	}
	return answers, err
}

func (p *polledPartition) frontierToRecord() (t pgtype.Timestamptz) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frontier != nil {
		t = pgtype.Timestamptz{Time: *p.frontier, Valid: true}
	}
	return t
}
