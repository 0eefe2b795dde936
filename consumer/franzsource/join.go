package franzsource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// balancer distributes partitions so that as few as possible move. It never moves one in the
// generation in which its owner learns of it (KIP-429). It is franz-go's, which uses the format of
// Kafka's own CooperativeStickyAssignor.
var balancer = kgo.CooperativeStickyBalancer()

// join takes part in forming the next generation and then holds what is assigned in it. Work on
// partitions continues meanwhile.
func (m *membership) join() error {
	m.update(func() { m.joining = true })
	defer m.update(func() { m.joining = false })
	// When Run is to end, partitions that still drain want to commit in the generation that is
	// being formed. So join waits for it, but only as long as something drains: other members may
	// take their whole rebalance timeout.
	ctx, cancel := context.WithCancel(context.WithoutCancel(m.ctx))
	defer cancel()
	idle := make(chan struct{})
	stop := context.AfterFunc(m.ctx, func() {
		defer close(idle)
		m.waitFor(ctx, func() bool { return len(m.held) == 0 })
		cancel()
	})
	defer func() {
		cancel()
		if !stop() {
			<-idle
		}
	}()
	for {
		select {
		case <-m.rejoin: // this join does what it asked for
		default:
		}
		resp, err := m.joinGroup(ctx)
		if err == nil {
			err = m.syncGroup(ctx, resp)
		}
		if !errors.Is(err, kerr.RebalanceInProgress) {
			return err
		}
	}
}

// joinGroup sends a JoinGroup, which is answered when all members have sent one.
func (m *membership) joinGroup(ctx context.Context) (*kmsg.JoinGroupResponse, error) {
	cfg := m.net.cfg
	interests := slices.Sorted(slices.Values(cfg.Topics))
	for {
		m.mu.Lock()
		as := m.groupMember
		owned := m.claimedPartitions()
		m.mu.Unlock()
		req := kmsg.NewPtrJoinGroupRequest()
		req.Group = cfg.GroupID
		req.MemberID = as.member
		req.InstanceID = cfg.instance()
		req.ProtocolType = "consumer"
		req.SessionTimeoutMillis = int32(cfg.SessionTimeout.Milliseconds())
		req.RebalanceTimeoutMillis = int32(cfg.RebalanceTimeout.Milliseconds())
		protocol := kmsg.NewJoinGroupRequestProtocol()
		protocol.Name, protocol.Metadata = balancer.ProtocolName(), balancer.JoinGroupMetadata(
			interests,
			owned,
			as.generation,
		)
		req.Protocols = append(req.Protocols, protocol)
		resp, err := ask[*kmsg.JoinGroupResponse](ctx, m.net, req)
		if err != nil {
			return nil, err
		}
		m.acceptedAt = time.Now()
		err = m.net.Error(resp.ErrorCode)
		if errors.Is(err, kerr.MemberIDRequired) {
			m.update(func() { m.groupMember.member = resp.MemberID })
			continue
		}
		return resp, err
	}
}

// claimedPartitions returns the partitions that this process claims: everything that it has not let
// go of, as long as the group regards it as the owner. Others may get what is not claimed. The lock
// must be held.
func (m *membership) claimedPartitions() map[string][]int32 {
	owned := make(map[string][]int32)
	for k, h := range m.held {
		if !h.p.frozen {
			owned[k.topic] = append(owned[k.topic], k.partition)
		}
	}
	for _, ps := range owned {
		slices.Sort(ps)
	}
	return owned
}

// syncGroup learns what is assigned to this process. The leader sends the assignment of all
// members.
func (m *membership) syncGroup(ctx context.Context, joined *kmsg.JoinGroupResponse) error {
	cfg := m.net.cfg
	as := groupMember{joined.MemberID, joined.Generation}
	req := kmsg.NewPtrSyncGroupRequest()
	req.Group = cfg.GroupID
	req.Generation = as.generation
	req.MemberID = as.member
	req.InstanceID = cfg.instance()
	protocol := "consumer"
	req.ProtocolType = &protocol
	req.Protocol = joined.Protocol
	leads := joined.LeaderID == joined.MemberID
	var counts map[string]int
	if leads {
		plan, shared, err := m.assignPartitions(ctx, joined.Members)
		if err != nil {
			return fmt.Errorf("sharing out the partitions: %w", err)
		}
		counts = shared
		if !joined.SkipAssignment {
			req.GroupAssignment = plan
		}
	}
	resp, err := ask[*kmsg.SyncGroupResponse](ctx, m.net, req)
	if err == nil {
		err = m.net.Error(resp.ErrorCode)
	}
	if err != nil {
		return err
	}
	topics, err := balancer.ParseSyncAssignment(resp.MemberAssignment)
	if err != nil {
		return fmt.Errorf("what was assigned: %w", err)
	}
	assigned := make(map[partitionKey]bool)
	for t, ps := range topics {
		for _, p := range ps {
			if slices.Contains(cfg.Topics, t) {
				assigned[partitionKey{t, p}] = true
			}
		}
	}
	m.acceptedAt = time.Now()
	m.applyAssignment(as, assigned, counts, leads)
	return nil
}

// assignPartitions distributes the partitions of all topics that members read, and returns how many
// partitions it knew of.
func (m *membership) assignPartitions(
	ctx context.Context,
	members []kmsg.JoinGroupResponseMember,
) ([]kmsg.SyncGroupRequestGroupAssignment, map[string]int, error) {
	slices.SortFunc(members, func(a, b kmsg.JoinGroupResponseMember) int {
		switch {
		case a.InstanceID != nil && b.InstanceID != nil:
			return cmp.Compare(*a.InstanceID, *b.InstanceID)
		case a.InstanceID != nil:
			return -1
		case b.InstanceID != nil:
			return 1
		}
		return cmp.Compare(a.MemberID, b.MemberID)
	})
	group, topics, err := balancer.MemberBalancer(members)
	if err != nil {
		return nil, nil, err
	}
	for _, t := range m.net.cfg.Topics {
		// After a static leader's return it knows its group only from the members' metadata.
		topics[t] = struct{}{}
	}
	counts, err := m.countPartitions(ctx, slices.Collect(maps.Keys(topics)))
	if err != nil {
		return nil, nil, err
	}
	sizes := make(map[string]int32, len(counts))
	for t, n := range counts {
		if n > 0 {
			sizes[t] = int32(n)
		}
	}
	shares, ok := group.(kgo.GroupMemberBalancerOrError)
	if !ok {
		return group.Balance(sizes).IntoSyncAssignment(), counts, nil
	}
	plan, err := shares.BalanceOrError(sizes)
	if err != nil {
		return nil, nil, err
	}
	return plan.IntoSyncAssignment(), counts, nil
}
