package franzsource

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/internal/kafkalog"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/ready"
)

// membership is one process in the group, from joining to leaving. One goroutine, run, talks to the
// coordinator; each holding has one too.
type membership struct {
	net  *network
	own  func(context.Context, source.Partition[*consumer.Message]) error
	ctx  context.Context // of Run
	stop context.CancelFunc

	joined *ready.Link
	rejoin chan struct{} // of size 1: a reason to join again
	// When the coordinator last accepted this process as a member; used by run alone.
	acceptedAt time.Time
	running    sync.WaitGroup // holdings

	mu              sync.Mutex
	changed         chan struct{} // closed and replaced with each change of what follows
	groupMember     groupMember   // generation -1: none
	joining         bool          // the next generation is being formed
	partitionCounts map[string]int
	isLeader        bool
	assigned        map[partitionKey]bool
	revoked         bool // the group waits for something to be let go in this generation
	held            map[partitionKey]*heldPartition
	err             error // why Run ends, unless its caller ended it
	losses          kafkalog.Losses
}

func newMembership(
	ctx context.Context,
	n *network,
	own func(context.Context, source.Partition[*consumer.Message]) error,
) *membership {
	ctx, stop := context.WithCancel(ctx)
	return &membership{
		net:         n,
		own:         own,
		ctx:         ctx,
		stop:        stop,
		rejoin:      make(chan struct{}, 1),
		changed:     make(chan struct{}),
		groupMember: groupMember{generation: -1},
		held:        make(map[partitionKey]*heldPartition),
	}
}

// update changes the state and wakes the goroutines that wait for a change.
func (m *membership) update(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	close(m.changed)
	m.changed = make(chan struct{})
}

// waitFor waits for a condition on the state. It returns false if ctx was done first.
func (m *membership) waitFor(ctx context.Context, cond func() bool) bool {
	for {
		m.mu.Lock()
		ok := cond()
		changed := m.changed
		m.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// stopWith makes Run return err once everything has stopped.
func (m *membership) stopWith(err error) {
	m.update(func() { m.err = errors.Join(m.err, err) })
	m.stop()
}

// requestRejoin asks run to join again.
func (m *membership) requestRejoin() {
	select {
	case m.rejoin <- struct{}{}:
	default:
	}
}

func (m *membership) joinAndServe() error {
	defer m.stop()
	retry := kafkalog.Backoff(kafkalog.JoinMin, kafkalog.JoinMax)
	m.net.log.Info(kafkalog.Joining, "session_timeout", m.net.cfg.SessionTimeout)
	for m.ctx.Err() == nil {
		err := m.join()
		switch {
		case err == nil:
			m.joined.Set(nil)
			retry.Reset()
			m.heartbeatUntilRejoin()
		case m.ctx.Err() != nil:
		case errors.Is(err, kerr.UnknownMemberID) || errors.Is(err, kerr.IllegalGeneration):
			m.giveUpAll(err)
		case isFinalRefusal(err):
			m.stopWith(fmt.Errorf("franzsource: group %q: %w", m.net.cfg.GroupID, err))
		default:
			if m.groupMember.generation >= 0 && time.Since(m.acceptedAt) > m.net.cfg.SessionTimeout {
				m.giveUpAll(err)
			}
			// Right after a broker's start: 15, Coordinator Not Available, until the offsets topic
			// exists.
			m.joined.Set(fmt.Errorf("group %s not joined: %w", m.net.cfg.GroupID, err))
			wait := retry.NextBackOff()
			m.net.log.Warn("onlyonce: group not joined, trying again", "error", err, "wait", wait)
			pace.Sleep(m.ctx, wait)
		}
	}
	m.drainPartitions()
	m.running.Wait()
	m.leaveGroup()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// isFinalRefusal reports whether the group rejects this process for a reason that a person has to
// correct.
func isFinalRefusal(err error) bool {
	return slices.ContainsFunc(
		[]error{kerr.InconsistentGroupProtocol, kerr.FencedInstanceID, kerr.InvalidGroupID, kerr.InvalidSessionTimeout,
			kerr.GroupAuthorizationFailed, kerr.UnsupportedVersion},
		func(e error) bool { return errors.Is(err, e) },
	)
}

// heartbeatUntilRejoin sends heartbeats until there is a reason to join again.
func (m *membership) heartbeatUntilRejoin() {
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() { m.watchPartitions(ctx) })
	tick := time.NewTicker(m.net.cfg.HeartbeatInterval)
	defer tick.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-m.rejoin:
			return
		case <-tick.C:
		}
		err := m.heartbeat(m.ctx)
		switch {
		case m.ctx.Err() != nil:
			return
		case err == nil:
			continue
		case errors.Is(err, kerr.RebalanceInProgress):
			return
		case errors.Is(err, kerr.UnknownMemberID), errors.Is(err, kerr.IllegalGeneration):
			m.giveUpAll(err)
			return
		case isFinalRefusal(err):
			m.stopWith(fmt.Errorf("franzsource: group %q: %w", m.net.cfg.GroupID, err))
			return
		case time.Since(m.acceptedAt) > m.net.cfg.SessionTimeout:
			// The group has removed this process by now, or will before it could answer.
			m.giveUpAll(err)
			return
		}
		m.net.log.Debug("onlyonce: heartbeat", "error", err)
	}
}

// heartbeat sends one sign of life. The answer that a rebalance is on also accepts this process as
// a member.
func (m *membership) heartbeat(ctx context.Context) error {
	cfg := m.net.cfg
	as := m.currentMember()
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group = cfg.GroupID
	req.Generation = as.generation
	req.MemberID = as.member
	req.InstanceID = cfg.instance()
	ctx, cancel := context.WithTimeout(ctx, cfg.SessionTimeout)
	defer cancel()
	sent := time.Now()
	resp, err := ask[*kmsg.HeartbeatResponse](ctx, m.net, req)
	if err != nil {
		return err
	}
	err = m.net.Error(resp.ErrorCode)
	if err == nil || errors.Is(err, kerr.RebalanceInProgress) {
		m.acceptedAt = sent
	}
	return err
}

// giveUpAll gives up everything that is held, because the group has lost this process or must be
// assumed to have lost it. Other members may own all of it by now.
//
// The member's id stays, unless the group does not know it. A coordinator that was away for longer
// than the session still has the member, and gives each one that it finds in its log another whole
// session: under a new id this process would wait for its old one.
func (m *membership) giveUpAll(err error) {
	m.net.log.Warn("onlyonce: the group has lost this process, joining anew", "error", err)
	m.joined.Set(fmt.Errorf("group %s has lost this process: %w", m.net.cfg.GroupID, err))
	m.update(func() {
		lost := groupMember{generation: -1}
		if !errors.Is(err, kerr.UnknownMemberID) {
			lost.member = m.groupMember.member
		}
		m.groupMember = lost
		m.assigned = nil
		for _, h := range m.held {
			h.p.frozen = true
			h.cancel()
		}
	})
}

// drainPartitions waits, when Run is to end, until every own has returned. Heartbeats continue
// meanwhile, so that the group accepts what is still committed. After the rebalance timeout others
// may take over.
func (m *membership) drainPartitions() {
	limit := time.NewTimer(m.net.cfg.RebalanceTimeout)
	defer limit.Stop()
	tick := time.NewTicker(m.net.cfg.HeartbeatInterval)
	defer tick.Stop()
	drained := make(chan struct{})
	go func() {
		m.waitUntilNoneHeld()
		close(drained)
	}()
	for {
		select {
		case <-drained:
			return
		case <-limit.C:
			m.net.log.Warn("onlyonce: partitions are still worked on after the rebalance timeout; others "+
				"may take them over",
				"timeout", m.net.cfg.RebalanceTimeout)
			<-drained
			return
		case <-tick.C:
			if err := m.heartbeat(context.WithoutCancel(m.ctx)); err != nil {
				m.net.log.Debug("onlyonce: heartbeat while draining", "error", err)
			}
		}
	}
}

// waitUntilNoneHeld waits until no partition is held.
func (m *membership) waitUntilNoneHeld() {
	m.waitFor(context.Background(), func() bool { return len(m.held) == 0 })
}

// leaveGroup lets the group assign the partitions to others at once. A static member does not
// leave, because it is expected back.
func (m *membership) leaveGroup() {
	member := m.groupMember.member
	if member == "" || m.net.cfg.InstanceID != "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), kafkalog.LeaveTimeout)
	defer cancel()
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = m.net.cfg.GroupID
	req.MemberID = member
	one := kmsg.NewLeaveGroupRequestMember()
	one.MemberID = member
	req.Members = append(req.Members, one)
	if _, err := ask[*kmsg.LeaveGroupResponse](ctx, m.net, req); err != nil {
		m.net.log.Debug("onlyonce: leaving the group", "error", err)
	}
}

// watchPartitions makes the leader join again when a topic has more partitions than it has
// distributed, or exists again.
func (m *membership) watchPartitions(ctx context.Context) {
	m.mu.Lock()
	leads := m.isLeader
	counts := maps.Clone(m.partitionCounts)
	m.mu.Unlock()
	if !leads {
		return
	}
	tick := time.NewTicker(process.PaceOf(m.ctx).Watch)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, err := m.countPartitions(ctx, slices.Collect(maps.Keys(counts)))
		if err != nil {
			if ctx.Err() == nil {
				m.net.log.Warn("onlyonce: looking for new partitions", "error", err)
			}
			continue
		}
		for topic, n := range now {
			if n > counts[topic] {
				m.net.log.Info("onlyonce: number of partitions changed", "topic", topic, "partitions", n)
				m.requestRejoin()
				return
			}
		}
	}
}

// countPartitions returns the number of partitions of each topic, 0 for one that does not exist.
func (m *membership) countPartitions(ctx context.Context, topics []string) (map[string]int, error) {
	counts := make(map[string]int, len(topics))
	for _, t := range topics {
		counts[t] = 0
	}
	for left := slices.Clone(topics); len(left) > 0; {
		found, err := kafkalog.Topics(ctx, m.net, left...)
		if about, is := errors.AsType[*kafkalog.TopicError](err); is && errors.Is(err, kerr.UnknownTopicOrPartition) {
			left = slices.DeleteFunc(left, func(t string) bool { return t == about.Topic })
			continue
		}
		if err != nil {
			return nil, err
		}
		for t, info := range found {
			counts[t] = len(info.Partitions)
		}
		break
	}
	return counts, nil
}
