package sharesource

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/pace"
)

const (
	// pollAtMost is how long a poll waits for records. The next one looks which partitions have
	// rested enough.
	pollAtMost = time.Second
	// checkEvery is how often the settings of the share group are read again.
	checkEvery = time.Minute
	// leaveTimeout bounds the last acknowledgements, and leaving the group.
	leaveTimeout = 5 * time.Second
	// retryWait is the pause after an error of the brokers.
	retryWait = 500 * time.Millisecond
	// refusals is how often wrong settings are read again. A broker that has just started may
	// answer before it has read those of groups.
	refusals = 4
)

// member is one process in the share group, from joining to leaving. Its goroutine polls,
// acknowledges each record of the poll, and polls again: franz-go acknowledges at a poll what was
// left open of the one before.
type member struct {
	s         *Source
	cl        *kgo.Client
	clusterID string
	topicIDs  map[string][16]byte // since before the first fetch
	confirmed bool                // they were still the same after a fetch
	atOnce    int
	most      int
	apply     func(context.Context, source.Delivery[*consumer.Message]) source.Applied

	resting map[partitionName]restingPartition
	checked time.Time
	refused int // how often the settings were wrong since
}

// partitionName is a partition of this member's topics.
type partitionName struct {
	topic     string
	partition int32
}

// restingPartition is a partition that is not fetched.
type restingPartition struct {
	until   time.Time                          // when the consumer is asked again
	without source.Delivery[*consumer.Message] // the question: a delivery without messages
}

// portion is what one call of apply gets.
type portion struct {
	delivery source.Delivery[*consumer.Message]
	records  []*kgo.Record
}

// Deliver joins the share group and calls apply with delivered messages; see [source.Shared].
func (s *Source) Deliver(ctx context.Context, atOnce, most int, apply func(ctx context.Context, d source.Delivery[*consumer.Message]) source.Applied) error {
	if s.faults != nil {
		return s.faults
	}
	for ctx.Err() == nil {
		if err := s.deliver(ctx, atOnce, most, apply); !errors.Is(err, errNewTopic) {
			return err
		}
		pace.Sleep(ctx, retryWait)
	}
	return nil
}

// errNewTopic means that a topic was deleted and created again. A client goes on with the topic
// that it has begun with, so it takes another one.
var errNewTopic = errors.New("topic was deleted and created again")

// deliver is Deliver with one client.
func (s *Source) deliver(ctx context.Context, atOnce, most int, apply func(ctx context.Context, d source.Delivery[*consumer.Message]) source.Applied) error {
	m := &member{s: s, atOnce: atOnce, most: most, apply: apply, resting: map[partitionName]restingPartition{}}
	var err error
	m.cl, err = s.client(kgo.ShareGroup(s.cfg.GroupID), kgo.ConsumeTopics(s.cfg.Topics...),
		kgo.ShareMaxRecords(int32(s.cfg.MaxRecords)), kgo.ShareMaxRecordsStrict()) //nolint:gosec // Validate has checked it
	if err != nil {
		return err
	}
	defer m.leave()
	for ctx.Err() == nil {
		if time.Since(m.checked) > checkEvery {
			err := m.checkCluster(ctx)
			if isFinal(err) {
				m.refused++
			}
			if m.refused > refusals || errors.Is(err, errNewTopic) {
				return err
			} else if err != nil {
				m.retry(ctx, err)
				continue
			}
			m.checked, m.refused = time.Now(), 0
		}
		if err := m.pollOnce(ctx); err != nil {
			return err
		}
	}
	return nil
}

// leave acknowledges what is done, gives the rest back, and leaves the group.
func (m *member) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	m.giveBackOpen()
	if err := m.cl.FlushAcks(ctx); err != nil {
		m.s.cfg.Logger.Info("onlyonce: acknowledgements were not sent; what they are about is delivered again", "group", m.s.cfg.GroupID, "error", err)
	}
	if err := m.cl.LeaveGroupContext(ctx); err != nil {
		m.s.cfg.Logger.Info("onlyonce: the share group was not left", "group", m.s.cfg.GroupID, "error", err)
	}
	m.cl.Close()
}

// giveBackOpen gives back each record of the last poll that has no acknowledgement. The next poll
// would acknowledge it (G2).
func (m *member) giveBackOpen() { m.cl.MarkAcks(kgo.AckRelease) }

// retry logs an error of the brokers, and waits.
func (m *member) retry(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	m.s.cfg.Logger.Warn("onlyonce: share group: trying again", "group", m.s.cfg.GroupID, "error", err)
	pace.Sleep(ctx, retryWait)
}

// pollOnce fetches what the broker delivers, applies it, and acknowledges what is done. It returns
// errNewTopic, or nil.
func (m *member) pollOnce(ctx context.Context) error {
	m.wakeRested(ctx)
	bounded, cancel := context.WithTimeout(ctx, pollAtMost)
	m.giveBackOpen()
	fetches := m.cl.PollFetches(bounded)
	cancel()
	var failed error
	fetches.EachError(func(topic string, partition int32, err error) {
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
			failed = errors.Join(failed, fmt.Errorf("%s/%d: %w", topic, partition, err))
		}
	})
	switch {
	case errors.Is(failed, kerr.UnknownTopicID) || errors.Is(failed, kerr.InconsistentTopicID):
		m.retry(ctx, failed)
		return errNewTopic
	case fetches.NumRecords() > 0 && !m.confirmed:
		// franz-go does not say which topic's records these are. If a topic has the id that it had
		// before the first fetch, they are that one's, and so are all that this client fetches.
		if err := m.checkCluster(ctx); errors.Is(err, errNewTopic) {
			return err
		} else if err != nil {
			m.retry(ctx, err) // the next poll gives back what this one has fetched
			return nil
		}
		m.confirmed = true
	}
	m.applyAll(ctx, m.portions(fetches))
	if failed != nil {
		m.retry(ctx, failed)
	}
	return nil
}

// portions divides what was fetched into calls of apply: records of one partition, which were all
// delivered for the first time or all before.
func (m *member) portions(fetches kgo.Fetches) (all []*portion) {
	for _, f := range fetches {
		for _, t := range f.Topics {
			for _, p := range t.Partitions {
				var open [2]*portion // first delivery, and later ones
				for _, r := range p.Records {
					again := 0
					if r.DeliveryCount() > 1 {
						again = 1
					}
					if open[again] == nil || len(open[again].records) == m.most {
						open[again] = &portion{delivery: source.Delivery[*consumer.Message]{ClusterID: m.clusterID, TopicPartition: source.TopicPartition{Topic: t.Topic, Partition: p.Partition}, TopicID: m.topicIDs[t.Topic],
							Again: again > 0, Until: r.AcquisitionDeadline()}}
						all = append(all, open[again])
					}
					one := open[again]
					one.records, one.delivery.Messages = append(one.records, r), append(one.delivery.Messages, message(r))
				}
			}
		}
	}
	return all
}

// message returns a record as the consumer's source of the same topic returns it.
func message(r *kgo.Record) *consumer.Message {
	m := &consumer.Message{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value,
		Time: r.Timestamp, LogAppendTime: r.Attrs.TimestampType() == 1, LeaderEpoch: r.LeaderEpoch}
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, consumer.Header{Name: h.Key, Value: h.Value})
	}
	return m
}

// applyAll applies portions, some at once, and acknowledges each when it is applied. It returns
// when all are.
func (m *member) applyAll(ctx context.Context, all []*portion) {
	var running sync.WaitGroup
	var mu sync.Mutex
	places := make(chan struct{}, m.atOnce)
	for _, one := range all {
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			var got source.Applied
			if ctx.Err() == nil {
				got = m.apply(ctx, one.delivery)
			}
			m.acknowledge(one, got.Done)
			if got.Rest > 0 {
				mu.Lock()
				defer mu.Unlock()
				m.rest(one.delivery, got.Rest)
			}
		})
	}
	running.Wait()
}

// acknowledge accepts what is done, and gives the rest back (G2).
func (m *member) acknowledge(one *portion, done []int64) {
	for _, r := range one.records {
		if _, found := slices.BinarySearch(done, r.Offset); found {
			r.Ack(kgo.AckAccept)
		} else {
			r.Ack(kgo.AckRelease)
		}
	}
}

// rest keeps a partition from being fetched for some time.
func (m *member) rest(d source.Delivery[*consumer.Message], wait time.Duration) {
	d.Messages, d.Again, d.Until = nil, false, time.Time{}
	m.resting[partitionName{d.Topic, d.Partition}] = restingPartition{time.Now().Add(wait), d}
	m.cl.PauseFetchPartitions(map[string][]int32{d.Topic: {d.Partition}})
}

// wakeRested fetches partitions again that have rested enough, unless the consumer lets them rest
// longer.
func (m *member) wakeRested(ctx context.Context) {
	for name, r := range m.resting {
		if time.Now().Before(r.until) {
			continue
		}
		if got := m.apply(ctx, r.without); got.Rest > 0 {
			m.resting[name] = restingPartition{time.Now().Add(got.Rest), r.without}
			continue
		}
		delete(m.resting, name)
		m.cl.ResumeFetchPartitions(map[string][]int32{name.topic: {name.partition}})
	}
}

// finalError is one that a person has to correct.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

func isFinal(err error) bool { return errors.As(err, new(finalError)) }

// checkCluster asks for the ids of cluster and topics, and whether the share group's settings are
// right. It returns errNewTopic if a topic has another id than the first time (G7).
func (m *member) checkCluster(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	meta := kmsg.NewPtrMetadataRequest()
	for _, topic := range m.s.cfg.Topics {
		one := kmsg.NewMetadataRequestTopic()
		one.Topic = kmsg.StringPtr(topic)
		meta.Topics = append(meta.Topics, one)
	}
	cluster, err := meta.RequestWith(ctx, m.cl)
	if err != nil {
		return fmt.Errorf("asking for the cluster: %w", err)
	}
	if cluster.ClusterID != nil {
		m.clusterID = *cluster.ClusterID
	}
	ids := map[string][16]byte{}
	for _, t := range cluster.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil || t.Topic == nil {
			return fmt.Errorf("asking for the topics: %w", err)
		}
		ids[*t.Topic] = t.TopicID
	}
	if m.topicIDs == nil {
		m.topicIDs = ids
	} else if !maps.Equal(ids, m.topicIDs) {
		return errNewTopic
	}
	return m.checkSettings(ctx)
}

// checkSettings asks whether the share group's settings are right.
func (m *member) checkSettings(ctx context.Context) error {
	const level = "share.isolation.level"
	one := kmsg.NewDescribeConfigsRequestResource()
	one.ResourceType, one.ResourceName, one.ConfigNames = kmsg.ConfigResourceTypeGroupConfig, m.s.cfg.GroupID, []string{level}
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Resources = append(req.Resources, one)
	resp, err := req.RequestWith(ctx, m.cl)
	if err != nil {
		return fmt.Errorf("asking for the settings of share group %q: %w", m.s.cfg.GroupID, err)
	}
	is := ""
	for _, r := range resp.Resources {
		switch err := kerr.ErrorForCode(r.ErrorCode); {
		case errors.Is(err, kerr.InvalidRequest) || errors.Is(err, kerr.UnsupportedVersion):
			return finalError{fmt.Errorf("sharesource: the brokers have no settings of groups: %w: share groups need Kafka 4.2 or later", err)}
		case errors.Is(err, kerr.GroupAuthorizationFailed):
			return finalError{fmt.Errorf("sharesource: share group %q: %w: this user needs the permission DescribeConfigs on the group", m.s.cfg.GroupID, err)}
		case err != nil:
			return fmt.Errorf("asking for the settings of share group %q: %w", m.s.cfg.GroupID, err)
		}
		for _, c := range r.Configs {
			if c.Name == level && c.Value != nil {
				is = *c.Value
			}
		}
	}
	if is != "read_committed" {
		return finalError{fmt.Errorf("sharesource: share group %q has %s=%q, so it would deliver records of aborted transactions: run kafka-configs.sh --bootstrap-server %s --alter --entity-type groups --entity-name %s --add-config %s=read_committed",
			m.s.cfg.GroupID, level, is, m.s.cfg.Brokers[0], m.s.cfg.GroupID, level)}
	}
	return nil
}
