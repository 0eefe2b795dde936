package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/internal/kafkalog"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/ready"
)

// membership is one process in the group, from joining to leaving.
type membership struct {
	net  *network
	own  func(context.Context, source.Partition[*consumer.Message]) error
	ctx  context.Context // of Run
	stop context.CancelFunc

	joined  *ready.Link
	running sync.WaitGroup // functions of all generations
	member  string         // id in the last generation

	mu  sync.Mutex
	err error // why Run ends, unless its caller ended it
	// Partitions of each topic, counted before the present generation was formed.
	partitionCounts map[string]int
	losses          kafkalog.Losses
}

// stopWith makes Run return err once everything has stopped.
func (m *membership) stopWith(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = errors.Join(m.err, err)
	m.stop()
}

func (m *membership) joinAndServe() error {
	cfg := m.net.cfg
	group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID:      cfg.GroupID,
		Brokers: cfg.Brokers,
		Topics:  cfg.Topics,
		Dialer: &kafka.Dialer{
			ClientID:      cfg.ClientID,
			Timeout:       dialTimeout,
			DialFunc:      m.net.groupConns.dial,
			TLS:           cfg.TLS,
			SASLMechanism: cfg.SASL,
		},
		SessionTimeout:    cfg.SessionTimeout,
		RebalanceTimeout:  cfg.RebalanceTimeout,
		HeartbeatInterval: cfg.HeartbeatInterval,
		// After an error kafka-go tries again by itself after this time, and then keeps the outcome
		// until Next is called. So the waits between attempts are those between calls of Next,
		// below.
		JoinGroupBackoff: kafkalog.JoinMin,
		// kafka-go's own watch asks for metadata with auto-creation on, and so revives a topic that
		// was just deleted. If a topic is missing, it also ends each generation at once. See watch.
		WatchPartitionChanges: false,
		ErrorLogger:           kafka.LoggerFunc(m.debug),
	})
	if err != nil {
		return fmt.Errorf("kafkasource: %w", err)
	}
	m.serveGenerations(group)
	m.leaveGroup(group)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

func (m *membership) debug(format string, args ...any) {
	m.net.log.Debug("onlyonce: kafka-go: " + fmt.Sprintf(format, args...))
}

// serveGenerations serves one generation after another until ctx is done.
func (m *membership) serveGenerations(group *kafka.ConsumerGroup) {
	retry := kafkalog.Backoff(kafkalog.JoinMin, kafkalog.JoinMax)
	m.net.log.Info(kafkalog.Joining, "session_timeout", m.net.cfg.SessionTimeout)
	for m.ctx.Err() == nil {
		gen, err := group.Next(m.ctx)
		if m.ctx.Err() != nil {
			return // leave ends a generation that came at the last moment
		}
		if err != nil {
			// Right after a broker's start: 15, Group Coordinator Not Available, until the offsets
			// topic exists.
			m.joined.Set(fmt.Errorf("group %s not joined: %w", m.net.cfg.GroupID, err))
			wait := retry.NextBackOff()
			m.net.log.Warn("onlyonce: group not joined, trying again", "error", err, "wait", wait)
			pace.Sleep(m.ctx, wait)
			continue
		}
		retry.Reset()
		m.serveGeneration(gen)
	}
}

// serveGeneration starts a generation's functions. kafka-go ends the generation as soon as one of
// them returns, and forms the next one when all have returned.
func (m *membership) serveGeneration(gen *kafka.Generation) {
	m.member = gen.MemberID
	m.joined.Set(nil)
	var held sync.WaitGroup
	partitions := 0
	for name, assigned := range gen.Assignments {
		for _, a := range assigned {
			p := &partition{
				Log:        kafkalog.New(m.net, m.net.readOptions(), name, int32(a.ID)),
				net:        m.net,
				topic:      name,
				index:      int32(a.ID),
				generation: gen.ID,
				member:     gen.MemberID,
			}
			partitions++
			held.Add(1)
			m.startFunc(gen, func(ctx context.Context) {
				defer held.Done()
				m.ownPartition(ctx, p)
			})
		}
	}
	m.net.log.Info("onlyonce: joined the group", "generation", gen.ID, "member", gen.MemberID, "partitions", partitions)
	m.startFunc(gen, func(ctx context.Context) {
		<-ctx.Done()
		m.heartbeatWhileDraining(gen, &held)
		m.countPartitions()
	})
	m.startFunc(gen, m.watchPartitions)
}

// startFunc is gen.Start for functions that Run waits for. If the generation has ended already,
// kafka-go calls the function too, with a context that is done, but does not wait for it.
func (m *membership) startFunc(gen *kafka.Generation, f func(context.Context)) {
	m.running.Add(1)
	gen.Start(func(ctx context.Context) {
		defer m.running.Done()
		f(ctx)
	})
}

// ownPartition hands a partition over until the generation or Run ends.
func (m *membership) ownPartition(generation context.Context, p *partition) {
	if generation.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	defer context.AfterFunc(generation, cancel)()
	err := m.own(ctx, p)
	p.Close()
	ended := ctx.Err() != nil
	switch {
	case err == nil && ended, ended && errors.Is(err, context.Canceled),
		ended && errors.Is(err, source.ErrOwnershipLost):
	case errors.Is(err, source.ErrOwnershipLost):
		// The group or the database has given the partition to another process. Two processes that
		// both believe in their ownership would fence each other in turns if they joined at once.
		// Other partitions of this process continue meanwhile.
		wait := m.losses.Wait()
		m.net.log.Warn("onlyonce: partition lost, joining the group anew", "topic", p.topic, "partition", p.index,
			"generation", p.generation, "wait", wait, "error", err)
		pace.Sleep(ctx, wait)
	case err == nil:
		m.stopWith(fmt.Errorf("kafkasource: %v: own returned without an error while the partition was to be owned", p))
	default:
		m.stopWith(err)
	}
}

// heartbeatWhileDraining sends heartbeats while own still works on partitions that are to be given
// up. kafka-go stops when the generation ends, and the group removes a member that is silent for
// the session timeout and refuses its commits. After the rebalance timeout others take over.
func (m *membership) heartbeatWhileDraining(gen *kafka.Generation, held *sync.WaitGroup) {
	drained := make(chan struct{})
	go func() {
		held.Wait()
		close(drained)
	}()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), m.net.cfg.RebalanceTimeout)
	defer cancel()
	tick := time.NewTicker(m.net.cfg.HeartbeatInterval)
	defer tick.Stop()
	for {
		select {
		case <-drained:
			return
		case <-ctx.Done():
			m.net.log.Warn("onlyonce: partitions are still worked on after the rebalance timeout; others "+
				"may take them over",
				"generation", gen.ID, "timeout", m.net.cfg.RebalanceTimeout)
			return
		case <-tick.C:
			req := kmsg.NewPtrHeartbeatRequest()
			req.Group = gen.GroupID
			req.Generation = gen.ID
			req.MemberID = gen.MemberID
			got, err := m.net.askCoordinator(ctx, req)
			if resp, ok := got.(*kmsg.HeartbeatResponse); ok &&
				kafka.Error(resp.ErrorCode) != kafka.RebalanceInProgress {
				err = m.net.Error(resp.ErrorCode)
			}
			if err != nil {
				m.debug("heartbeat while draining: %v", err)
			}
		}
	}
}

// watchPartitions ends the generation when a topic has got more partitions, so that they are
// assigned. A topic that is gone ends nothing: joining again would make kafka-go ask for its
// metadata, with auto-creation on.
func (m *membership) watchPartitions(ctx context.Context) {
	tick := time.NewTicker(process.PaceOf(m.ctx).Watch)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		topics, err := kafkalog.Topics(ctx, m.net, m.net.cfg.Topics...)
		if err != nil {
			if ctx.Err() == nil {
				m.net.log.Warn("onlyonce: looking for new partitions", "error", err)
			}
			continue
		}
		m.mu.Lock()
		changed := ""
		for name, t := range topics {
			if len(t.Partitions) != m.partitionCounts[name] {
				changed = name
			}
		}
		m.mu.Unlock()
		if changed != "" {
			m.net.log.Info("onlyonce: number of partitions changed",
				"topic", changed, "partitions", len(topics[changed].Partitions))
			return
		}
	}
}

// countPartitions counts the partitions between two generations. The leader of the next generation
// sees whatever this count misses, or the next watch does. If the count came after the join, a
// partition added in between would have no owner until the next rebalance.
func (m *membership) countPartitions() {
	if m.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(m.ctx, time.Second)
	defer cancel()
	if topics, err := kafkalog.Topics(ctx, m.net, m.net.cfg.Topics...); err == nil {
		m.setPartitionCounts(topics)
	}
}

func (m *membership) setPartitionCounts(topics map[string]kafkalog.Topic) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.partitionCounts = make(map[string]int, len(topics))
	for name, t := range topics {
		m.partitionCounts[name] = len(t.Partitions)
	}
}

// leaveGroup waits until every own has returned, and makes kafka-go leave the group, which it does
// once all functions of the last generation have returned. If kafka-go waits in a JoinGroup, which
// takes as long as the slowest other member, leave interrupts it.
func (m *membership) leaveGroup(group *kafka.ConsumerGroup) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = group.Close() // always nil
	}()
	m.running.Wait()
	t := time.NewTimer(kafkalog.LeaveTimeout)
	defer t.Stop()
	select {
	case <-closed:
		return
	case <-t.C:
	}
	m.net.log.Warn("onlyonce: still joining the group, interrupted")
	if m.member != "" {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), kafkalog.LeaveTimeout)
		defer cancel()
		req := kmsg.NewPtrLeaveGroupRequest()
		req.Group = m.net.cfg.GroupID
		req.MemberID = m.member
		if _, err := m.net.askCoordinator(ctx, req); err != nil {
			m.debug("leaving the group: %v", err)
		}
	}
	m.net.groupConns.closeAll()
	<-closed
}
