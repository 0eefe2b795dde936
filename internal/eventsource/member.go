package eventsource

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/lease"
)

// place names a partition within a source.
type place struct {
	topic string
	nr    int16
}

// member is one Run of a source. One goroutine renews leases, takes and gives back partitions, and
// looks for events. Each call of own has a goroutine of its own.
type member struct {
	*Source
	own    func(context.Context, consumer.Partition) error
	joined map[string]*lease.Lease // by topic: shows other members that this process reads it
	held   map[place]*partition
	ended  chan *partition
	round  atomic.Int64 // scouts that were begun

	renewAt, lookAt, scoutAt, notBefore time.Time
}

// run returns nil after ctx has ended and every own has returned, or the error that ends the work.
func (m *member) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pause := backoff.NewExponentialBackOff(backoff.WithInitialInterval(m.cfg.LeaseTTL/100), backoff.WithMaxInterval(m.cfg.LeaseTTL/10),
		backoff.WithMaxElapsedTime(0))
	var fault error
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		if err := m.step(ctx); err != nil && ctx.Err() == nil {
			m.membership.Set(err)
			d := pause.NextBackOff()
			m.cfg.Logger.Warn("onlyonce: reading the event log failed", "group", m.cfg.Group, "error", err, "again_in", d)
			m.notBefore = time.Now().Add(d)
		} else {
			pause.Reset()
			m.membership.Set(nil)
		}
		timer.Reset(time.Until(m.next()))
		select {
		case <-timer.C:
		case <-m.wake:
			m.scoutAt = time.Time{}
		case p := <-m.ended:
			if err := m.left(ctx, p); err != nil && fault == nil {
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
			fault = errors.Join(fault, m.left(ctx, p))
		case <-timer.C:
			m.release(ctx)
			if !time.Now().Before(m.renewAt) {
				if err := m.renew(ctx); err != nil {
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

func (m *member) next() time.Time {
	next := slices.MinFunc([]time.Time{m.renewAt, m.lookAt, m.scoutAt}, time.Time.Compare)
	if next.Before(m.notBefore) {
		return m.notBefore
	}
	return next
}

// step does what is due.
func (m *member) step(ctx context.Context) error {
	now := time.Now()
	if now.Before(m.notBefore) {
		return nil
	}
	m.release(ctx)
	if !now.Before(m.renewAt) {
		if err := m.renew(ctx); err != nil {
			return err
		}
	}
	if !now.Before(m.lookAt) {
		if err := m.look(ctx); err != nil {
			return err
		}
	}
	if !now.Before(m.scoutAt) {
		return m.scout(ctx)
	}
	return nil
}

// renew extends all leases that this process holds, in one statement. A partition that it has lost
// ends.
func (m *member) renew(ctx context.Context) error {
	bounded, cancel := m.detached(ctx)
	defer cancel()
	for _, topic := range m.cfg.Topics {
		if m.joined[topic] == nil {
			l, err := lease.Join(bounded, m.pool, m.memberLease(topic)+"/", m.cfg.LeaseTTL)
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
				p.giveUp(consumer.ErrOwnershipLost)
			}
		}
	}
	return nil
}

// look takes free partitions, and gives back those above this member's share.
func (m *member) look(ctx context.Context) error {
	m.lookAt = time.Now().Add(m.cfg.PollInterval)
	bounded, cancel := m.detached(ctx)
	defer cancel()
	found, err := m.survey(bounded)
	if err != nil {
		return err
	}
	for _, st := range found {
		share := lease.Share(int(st.Partitions), st.Members)
		mine, surplus := 0, -share
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
			at := place{st.Topic, nr}
			if m.held[at] != nil {
				continue // an own that does not return, or released a moment ago
			}
			l, err := lease.Acquire(bounded, m.pool, m.partitionLease(st.Topic)+"/"+strconv.Itoa(int(nr)), m.cfg.LeaseTTL)
			if err != nil {
				return err
			}
			if l != nil {
				m.take(ctx, at, l, st)
				mine++
			}
		}
	}
	return nil
}

// take starts own on a partition that was acquired.
func (m *member) take(ctx context.Context, at place, l *lease.Lease, st standing) {
	p := &partition{s: m.Source, place: at, lease: l, held: *l, round: &m.round, news: make(chan struct{}, 1),
		stream: streamRef{st.ID, st.Incarnation.Bytes, st.Partitions}}
	p.caught.Store(-1)
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	m.held[at] = p
	go func() {
		p.err = m.own(p.ctx, p)
		p.alive = p.ctx.Err() == nil
		p.cancel(nil)
		m.ended <- p
	}()
}

// left removes a partition whose own has returned, and returns the error that ends Run, if any.
func (m *member) left(ctx context.Context, p *partition) error {
	delete(m.held, p.place)
	if !p.released {
		bounded, cancel := m.detached(ctx)
		defer cancel()
		if err := p.lease.Release(bounded, m.pool); err != nil {
			// It ends by itself.
			m.cfg.Logger.Warn("onlyonce: a lease was not released", "topic", p.topic, "partition", p.nr, "error", err)
		}
	}
	switch {
	case errors.Is(p.err, consumer.ErrOwnershipLost):
		return nil // it is taken again, under another epoch, at the next look
	case p.err == nil && p.alive:
		return fmt.Errorf("eventsource: %s/%d: its own returned although its context had not ended", p.topic, p.nr)
	case p.alive, !errors.Is(p.err, context.Canceled):
		return p.err
	}
	return nil
}

// release gives back the leases of partitions whose HandoverTimeout has passed, even if own still
// works on them.
func (m *member) release(ctx context.Context) {
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

// news is a row of scoutSQL.
type news struct {
	Topic       string
	Partition   int16
	Incarnation pgtype.UUID
	End         int64
}

// scout notifies partitions that have something to read.
func (m *member) scout(ctx context.Context) error {
	m.scoutAt = time.Now().Add(m.cfg.PollInterval)
	if len(m.held) == 0 {
		return nil
	}
	round := m.round.Add(1)
	var topics []string
	var nrs []int16
	for at := range m.held {
		topics, nrs = append(topics, at.topic), append(nrs, at.nr)
	}
	bounded, cancel := m.detached(ctx)
	defer cancel()
	var found []news
	if err := reading(bounded, m.pool, false, func(b *pgx.Batch) {
		b.Queue(scoutSQL, topics, nrs).Query(func(rows pgx.Rows) (err error) {
			found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[news])
			return err
		})
	}); err != nil {
		return fmt.Errorf("looking for events: %w", err)
	}
	for _, n := range found {
		if p := m.held[place{n.Topic, n.Partition}]; p != nil {
			p.heard(round, n)
		}
	}
	return nil
}
