package franzsource

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/consumer/internal/kafkalog"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/pace"
)

// heldPartition is a partition from its hand-over until own has returned.
type heldPartition struct {
	p            *partition
	ctx          context.Context
	cancel       context.CancelFunc
	overdueTimer *time.Timer // runs while the partition is to be let go
}

// applyAssignment applies the assignment of a new generation. A partition that stays is not
// interrupted and commits in the new generation; one that is not assigned any more is to be let go;
// a new one is begun.
func (m *membership) applyAssignment(
	as groupMember,
	assigned map[partitionKey]bool,
	counts map[string]int,
	leads bool,
) {
	gained := 0
	revoked := 0
	m.update(func() {
		m.groupMember = as
		m.assigned = assigned
		m.partitionCounts = counts
		m.isLeader = leads
		m.joining = false
		m.revoked = false
		for k, h := range m.held {
			if h.p.frozen {
				continue
			}
			h.p.groupMember = as
			if !assigned[k] {
				m.revoke(h)
				revoked++
			}
		}
		gained = m.startAssigned()
	})
	m.net.log.Info("onlyonce: joined the group",
		"generation", as.generation, "member", as.member, "partitions", len(assigned), "gained", gained,
		"revoked", revoked)
}

// revoke asks own to let a partition go. Until it does, this process claims the partition in each
// generation, so that no other member gets it and the group accepts what own still commits. That
// lasts at most for the rebalance timeout. The lock must be held.
func (m *membership) revoke(h *heldPartition) {
	m.revoked = true
	h.cancel()
	if h.overdueTimer != nil {
		return
	}
	h.overdueTimer = time.AfterFunc(m.net.cfg.RebalanceTimeout, func() {
		m.update(func() {
			if m.held[h.p.key] != h || h.p.frozen {
				return
			}
			m.net.log.Warn("onlyonce: a partition is still worked on after the rebalance timeout; it goes to another",
				"topic", h.p.key.topic, "partition", h.p.key.partition, "timeout", m.net.cfg.RebalanceTimeout)
			h.p.frozen = true
			m.rejoinIfReleased()
		})
	})
}

// rejoinIfReleased joins again when everything that was to be let go is released, so that others
// get it: in this generation it has no owner. The lock must be held.
func (m *membership) rejoinIfReleased() {
	for k, h := range m.held {
		if !m.assigned[k] && !h.p.frozen {
			return
		}
	}
	if m.revoked {
		m.revoked = false
		m.requestRejoin()
	}
}

// startAssigned hands over what is assigned and not held, and returns how many partitions these
// are. A partition that came back while it was being let go is handed over when own has returned.
// The lock must be held.
func (m *membership) startAssigned() int {
	n := 0
	for k := range m.assigned {
		if m.held[k] != nil || m.ctx.Err() != nil {
			continue
		}
		h := &heldPartition{p: &partition{
			Log:         kafkalog.New(m.net, m.net.readOptions(), k.topic, k.partition),
			m:           m,
			key:         k,
			groupMember: m.groupMember,
		}}
		h.ctx, h.cancel = context.WithCancel(m.ctx)
		m.held[k] = h
		m.running.Go(func() { m.ownPartition(h) })
		n++
	}
	return n
}

// ownPartition is a partition's goroutine.
func (m *membership) ownPartition(h *heldPartition) {
	err := m.own(h.ctx, h.p)
	h.p.Close()
	ended := h.ctx.Err() != nil
	lost := false
	h.cancel()
	switch {
	case ended && endsQuietly(err):
	case errors.Is(err, source.ErrOwnershipLost):
		lost = true
	case err == nil:
		m.stopWith(fmt.Errorf("franzsource: %v: own returned without an error while the partition was to be owned",
			h.p))
	default:
		m.stopWith(err)
	}
	var as groupMember
	m.update(func() {
		if h.overdueTimer != nil {
			h.overdueTimer.Stop()
		}
		as = h.p.groupMember
		h.p.frozen = true
		delete(m.held, h.p.key)
		if lost {
			// Claimed no more, and not handed over again in this generation.
			delete(m.assigned, h.p.key)
		}
		m.startAssigned()
		m.rejoinIfReleased()
	})
	if !lost {
		return
	}
	// The group or the database has given the partition to another process. Two processes that both
	// believe in their ownership would fence each other in turns if they joined at once. Other
	// partitions of this process continue meanwhile.
	wait := m.losses.Wait()
	m.net.log.Warn("onlyonce: partition lost, joining the group anew",
		"topic", h.p.key.topic, "partition", h.p.key.partition, "generation", as.generation, "wait", wait,
		"error", err)
	if pace.Sleep(m.ctx, wait) && m.currentMember() == as {
		m.requestRejoin()
	}
}

func (m *membership) currentMember() groupMember {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.groupMember
}

// memberOf returns the member and generation as which a partition is owned.
func (m *membership) memberOf(p *partition) groupMember {
	m.mu.Lock()
	defer m.mu.Unlock()
	return p.groupMember
}

// waitForNextGeneration waits while the next generation is being formed, and reports whether the
// partition belongs to this member in it too.
func (m *membership) waitForNextGeneration(ctx context.Context, p *partition, was groupMember) bool {
	moved := false
	m.waitFor(ctx, func() bool {
		moved = p.groupMember != was && !p.frozen
		return moved || p.frozen || !m.joining
	})
	return moved
}

// endsQuietly reports whether err is what is left when a partition is given back.
func endsQuietly(err error) bool {
	return err == nil || errors.Is(err, context.Canceled) || errors.Is(err, source.ErrOwnershipLost)
}
