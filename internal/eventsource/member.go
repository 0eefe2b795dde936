package eventsource

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/primary"
)

// partitionID names a partition within a source.
type partitionID struct {
	topic string
	nr    int16
}

// member is one Run of a source. One goroutine renews leases, takes and gives back partitions, and
// looks for events. Each call of own has a goroutine of its own (E3).
type member struct {
	*Source
	own    func(context.Context, source.Partition[*consumer.Message]) error
	joined map[string]*lease.Lease // by topic: shows other members that this process reads it
	held   map[partitionID]*partition
	ended  chan *partition
	polls  atomic.Int64 // polls of the ends that were begun

	renewAt, balanceAt, pollAt, notBefore time.Time

	events pace.Pursuit          // of pollEnds
	ends   map[partitionID]int64 // of the partitions, as pollEnds last saw them
}

// runMember returns nil after ctx has ended and every own has returned, or the error that ends the
// work.
func (m *member) runMember(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pause := primary.Backoff(m.cfg.LeaseTTL)
	var fault error
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		if err := m.doWhatIsDue(ctx); err != nil && ctx.Err() == nil {
			m.membership.Set(err)
			d := pause.NextBackOff()
			m.cfg.Logger.Warn("onlyonce: reading the event log failed",
				"group", m.cfg.Group, "error", err, "again_in", d)
			m.notBefore = time.Now().Add(d)
		} else {
			pause.Reset()
			m.membership.Set(nil)
		}
		timer.Reset(time.Until(m.nextDue()))
		select {
		case <-timer.C:
		case <-m.wake:
			m.pollAt = time.Time{}
		case p := <-m.ended:
			if err := m.removePartition(ctx, p); err != nil && fault == nil {
				fault = err
				cancel()
			}
		case <-ctx.Done():
		}
	}
	// Leases last until the work under way has ended, or until HandoverTimeout.
	for len(m.held) > 0 {
		for _, p := range m.held {
			p.giveUp(context.Canceled)
		}
		timer.Reset(m.cfg.LeaseTTL / 30)
		select {
		case p := <-m.ended:
			fault = errors.Join(fault, m.removePartition(ctx, p))
		case <-timer.C:
			m.releaseOverdue(ctx)
			if !time.Now().Before(m.renewAt) {
				if err := m.renewLeases(ctx); err != nil {
					m.cfg.Logger.Warn("onlyonce: renewing leases failed", "group", m.cfg.Group, "error", err)
				}
			}
		}
	}
	bounded, done := m.detached(ctx)
	defer done()
	for _, l := range m.joined {
		_ = l.Release(bounded, m.pool) // if that fails it ends by itself
	}
	return fault
}

// detached returns a context for work that must not be cut off when ctx ends.
func (m *member) detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), m.cfg.LeaseTTL/3)
}

func (m *member) nextDue() time.Time {
	next := slices.MinFunc([]time.Time{m.renewAt, m.balanceAt, m.pollAt}, time.Time.Compare)
	if next.Before(m.notBefore) {
		return m.notBefore
	}
	return next
}

// doWhatIsDue does what is due.
func (m *member) doWhatIsDue(ctx context.Context) error {
	now := time.Now()
	if now.Before(m.notBefore) {
		return nil
	}
	m.releaseOverdue(ctx)
	if !now.Before(m.renewAt) {
		if err := m.renewLeases(ctx); err != nil {
			return err
		}
	}
	if !now.Before(m.balanceAt) {
		if err := m.balancePartitions(ctx); err != nil {
			return err
		}
	}
	if !now.Before(m.pollAt) {
		return m.pollEnds(ctx)
	}
	return nil
}

// renewLeases extends all leases that this process holds, in one statement. A partition that it has
// lost ends.
func (m *member) renewLeases(ctx context.Context) error {
	bounded, cancel := m.detached(ctx)
	defer cancel()
	for _, topic := range m.cfg.Topics {
		if m.joined[topic] == nil {
			l, err := lease.Join(bounded, m.pool, names.Readers(m.cfg.Group, topic), m.cfg.LeaseTTL)
			if err != nil {
				return err
			}
			m.joined[topic] = l
		}
	}
	var all []*lease.Lease
	for _, l := range m.joined {
		all = append(all, l)
	}
	for _, p := range m.held {
		if !p.released {
			all = append(all, p.lease)
		}
	}
	sent := time.Now()
	lost, err := lease.RenewAll(bounded, m.pool, all, m.cfg.LeaseTTL)
	if err != nil {
		return err
	}
	m.renewAt = sent.Add(m.cfg.LeaseTTL / 3)
	for _, l := range lost { // this process was stopped for long
		for topic, mine := range m.joined {
			if mine == l {
				delete(m.joined, topic)
				m.renewAt = time.Time{}
			}
		}
		for _, p := range m.held {
			if p.lease == l {
				p.released = true
				p.giveUp(source.ErrOwnershipLost)
			}
		}
	}
	return nil
}

// balancePartitions takes free partitions, and gives back those above this member's share.
func (m *member) balancePartitions(ctx context.Context) error {
	m.balanceAt = time.Now().Add(m.cfg.PollInterval)
	bounded, cancel := m.detached(ctx)
	defer cancel()
	found, err := m.readStreams(bounded)
	if err != nil {
		return err
	}
	for _, st := range found {
		share := lease.Share(int(st.Partitions), st.Members)
		mine := 0
		surplus := -share
		for at, p := range m.held {
			if at.topic == st.Topic {
				mine++
				if p.ctx.Err() == nil {
					surplus++
				}
			}
		}
		for at, p := range m.held {
			if surplus > 0 && at.topic == st.Topic && p.ctx.Err() == nil {
				p.giveUp(context.Canceled)
				surplus--
			}
		}
		for _, nr := range st.Free {
			if mine >= share || ctx.Err() != nil {
				break
			}
			at := partitionID{st.Topic, nr}
			if m.held[at] != nil {
				continue // an own that does not return, or released a moment ago
			}
			l, err := lease.Acquire(
				bounded,
				m.pool,
				names.Partitions(m.cfg.Group, st.Topic).Lease(int(nr)),
				m.cfg.LeaseTTL,
			)
			if err != nil {
				return err
			}
			if l != nil {
				m.startPartition(ctx, at, l, st)
				mine++
			}
		}
	}
	return nil
}

// startPartition starts own on a partition that was acquired.
func (m *member) startPartition(ctx context.Context, at partitionID, l *lease.Lease, st streamState) {
	p := &partition{
		s:           m.Source,
		partitionID: at,
		lease:       l,
		acquired:    *l,
		polls:       &m.polls,
		wakeup:      make(chan struct{}, 1),
		stream:      streamRef{st.ID, st.Incarnation.Bytes, st.Partitions},
	}
	p.caughtUpAt.Store(-1)
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	m.held[at] = p
	go func() {
		p.err = m.own(p.ctx, p)
		p.alive = p.ctx.Err() == nil
		p.cancel(nil)
		m.ended <- p
	}()
}

// removePartition removes a partition whose own has returned, and returns the error that ends Run,
// if any.
func (m *member) removePartition(ctx context.Context, p *partition) error {
	delete(m.held, p.partitionID)
	if !p.released {
		bounded, cancel := m.detached(ctx)
		defer cancel()
		if err := p.lease.Release(bounded, m.pool); err != nil {
			// It ends by itself.
			m.cfg.Logger.Warn("onlyonce: a lease was not released", "topic", p.topic, "partition", p.nr, "error", err)
		}
	}
	switch {
	case errors.Is(p.err, source.ErrOwnershipLost):
		return nil // it is taken again, under another epoch, at the next look
	case p.err == nil && p.alive:
		return fmt.Errorf("eventsource: %s/%d: its own returned although its context had not ended", p.topic, p.nr)
	case p.alive, !errors.Is(p.err, context.Canceled):
		return p.err
	}
	return nil
}

// releaseOverdue gives back the leases of partitions whose HandoverTimeout has passed, even if own
// still works on them.
func (m *member) releaseOverdue(ctx context.Context) {
	for _, p := range m.held {
		if p.released || p.giveUpAt.IsZero() || time.Since(p.giveUpAt) < m.cfg.HandoverTimeout {
			continue
		}
		bounded, cancel := m.detached(ctx)
		if err := p.lease.Release(bounded, m.pool); err == nil {
			p.released = true
		}
		cancel()
	}
}

// partitionEnd is a row of endsSQL.
type partitionEnd struct {
	Topic       string
	Partition   int16
	Incarnation pgtype.UUID
	End         int64
}

// noteEnds sets when the member looks for events again. That follows what it finds: events that
// were appended since its last look (O19).
func (m *member) noteEnds(found []partitionEnd, now time.Time) {
	before := m.ends
	m.ends = make(map[partitionID]int64, len(found))
	for _, n := range found {
		at := partitionID{n.Topic, n.Partition}
		m.ends[at] = n.End
		if end, known := before[at]; known && n.End > end {
			m.events.Found(now)
		}
	}
	m.pollAt = now.Add(m.events.Next(now, m.cfg.PollInterval))
}

// pollEnds notifies partitions that have something to read.
func (m *member) pollEnds(ctx context.Context) error {
	m.pollAt = time.Now().Add(m.cfg.PollInterval)
	if len(m.held) == 0 {
		return nil
	}
	poll := m.polls.Add(1)
	var topics []string
	var nrs []int16
	for at := range m.held {
		topics = append(topics, at.topic)
		nrs = append(nrs, at.nr)
	}
	bounded, cancel := m.detached(ctx)
	defer cancel()
	var found []partitionEnd
	if err := queryLog(bounded, m.pool, false, func(b *pgx.Batch) {
		b.Queue(endsSQL, topics, nrs).Query(func(rows pgx.Rows) (err error) {
			found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[partitionEnd])
			return err
		})
	}); err != nil {
		return fmt.Errorf("looking for events: %w", err)
	}
	m.noteEnds(found, time.Now())
	for _, n := range found {
		if p := m.held[partitionID{n.Topic, n.Partition}]; p != nil {
			p.noteEnd(poll, n)
		}
	}
	return nil
}
