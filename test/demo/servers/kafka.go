package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

// Bounds of the group's session timeout, which is how long a killed worker keeps its partitions.
// shortSession is requested if the brokers allow it; usualSession is what brokers allow by default.
const (
	shortSession = 2 * time.Second
	usualSession = 6 * time.Second
)

// adminTimeout bounds what an administrator's request may take, waiting for it to have its effect
// included.
const adminTimeout = 30 * time.Second

// Kafka is a cluster that answers.
type Kafka struct {
	Address KafkaAddress
	// How says in one line which cluster was taken and why.
	How string
	// Given is true of the user's own cluster: what is not wanted any more must be removed.
	Given bool
	// SessionTimeout is a short one that the brokers allow.
	SessionTimeout time.Duration

	transport *kafka.Transport
	client    *kafka.Client
}

// inspect is the first connection to a cluster that the user named.
func (k *Kafka) inspect(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	meta, err := k.client.Metadata(bounded, &kafka.MetadataRequest{Topics: []string{}})
	if err == nil && len(meta.Brokers) == 0 {
		err = errors.New("no broker is known there")
	}
	brokers := strings.Join(k.Address.Brokers, ",")
	var refused kafka.Error
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &refused):
		return fmt.Errorf("kafka at %s refused the connection: %w: check -sasl and -tls", brokers, err)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("kafka at %s closed the connection: does it expect -tls or -sasl?", brokers)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("cannot reach kafka at %s: no answer within %v: is it running, and is -brokers right?", brokers, connectTimeout)
	case err != nil:
		return fmt.Errorf("cannot reach kafka at %s: %w: is it running, and is -brokers right?", brokers, err)
	}
	k.SessionTimeout = max(k.leastSession(bounded, meta.Brokers[0].ID), shortSession)
	return nil
}

// leastSession asks a broker how short a session may be. Who may not ask gets Kafka's default.
func (k *Kafka) leastSession(ctx context.Context, broker int) time.Duration {
	const name = "group.min.session.timeout.ms"
	resp, err := k.client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{Resources: []kafka.DescribeConfigRequestResource{
		{ResourceType: kafka.ResourceTypeBroker, ResourceName: strconv.Itoa(broker), ConfigNames: []string{name}}}})
	if err != nil {
		return usualSession
	}
	for _, r := range resp.Resources {
		for _, e := range r.ConfigEntries {
			if ms, err := strconv.Atoi(e.ConfigValue); err == nil && e.ConfigName == name {
				return time.Duration(ms) * time.Millisecond
			}
		}
	}
	return usualSession
}

// CreateTopic creates a topic and waits until every partition answers. It has as many replicas as
// the cluster gives a topic by default (-1: KIP-464): one with min.insync.replicas=2 would take no
// record with less.
func (k *Kafka) CreateTopic(ctx context.Context, topic string, partitions int) error {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	resp, err := k.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{
		{Topic: topic, NumPartitions: partitions, ReplicationFactor: -1}}})
	if err == nil {
		err = resp.Errors[topic]
	}
	if err != nil {
		return fmt.Errorf("creating topic %s: %w", topic, err)
	}
	err = until(ctx, func() error {
		_, err := k.Ends(ctx, topic, partitions)
		return err
	})
	if err != nil {
		return fmt.Errorf("topic %s was created and does not answer: %w", topic, err)
	}
	return nil
}

// Ends returns the offset behind the last record of each partition.
func (k *Kafka) Ends(ctx context.Context, topic string, partitions int) ([]int64, error) {
	var asked []kafka.OffsetRequest
	for p := range partitions {
		asked = append(asked, kafka.LastOffsetOf(p))
	}
	resp, err := k.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: asked}})
	if err != nil {
		return nil, err
	}
	ends := make([]int64, partitions)
	if n := len(resp.Topics[topic]); n != partitions {
		return nil, fmt.Errorf("%d of %d partitions answer", n, partitions)
	}
	for _, p := range resp.Topics[topic] {
		if p.Error != nil {
			return nil, p.Error
		}
		ends[p.Partition] = p.LastOffset
	}
	return ends, nil
}

// Committed returns the group's committed offset of each partition, -1 if there is none.
func (k *Kafka) Committed(ctx context.Context, group, topic string, partitions int) ([]int64, error) {
	all := make([]int, partitions)
	for p := range all {
		all[p] = p
	}
	resp, err := k.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: group, Topics: map[string][]int{topic: all}})
	if err == nil {
		err = resp.Error
	}
	if err != nil {
		return nil, err
	}
	offsets := make([]int64, partitions)
	for _, p := range resp.Topics[topic] {
		if p.Error != nil {
			return nil, p.Error
		}
		offsets[p.Partition] = p.CommittedOffset
	}
	return offsets, nil
}

// Reset commits offset 0 for every partition of a group without members, as `kafka-consumer-groups
// --reset-offsets --to-earliest --execute` does, and waits until the group says so.
func (k *Kafka) Reset(ctx context.Context, group, topic string, partitions int) error {
	return k.ResetTo(ctx, group, topic, make([]int64, partitions))
}

// ResetTo is Reset to an offset of each partition.
func (k *Kafka) ResetTo(ctx context.Context, group, topic string, offsets []int64) error {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	var commits []kafka.OffsetCommit
	for p, offset := range offsets {
		commits = append(commits, kafka.OffsetCommit{Partition: p, Offset: offset})
	}
	err := until(ctx, func() error {
		resp, err := k.client.OffsetCommit(ctx, &kafka.OffsetCommitRequest{GroupID: group, GenerationID: -1,
			Topics: map[string][]kafka.OffsetCommit{topic: commits}})
		if err != nil {
			return err
		}
		for _, p := range resp.Topics[topic] {
			if p.Error != nil { // the group may still have a member that is on its way out
				return p.Error
			}
		}
		committed, err := k.Committed(ctx, group, topic, len(offsets))
		for p, offset := range committed {
			if offset != offsets[p] {
				return fmt.Errorf("partition %d is at %d", p, offset)
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("resetting the offsets of group %s: %w", group, err)
	}
	return nil
}

// Remove deletes a topic and a group.
func (k *Kafka) Remove(ctx context.Context, group, topic string) error {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	var errs []error
	topics, err := k.client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	if err == nil {
		err = topics.Errors[topic]
	}
	errs = append(errs, err)
	groups, err := k.client.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{group}})
	if err == nil {
		err = groups.Errors[group]
	}
	return errors.Join(append(errs, err)...)
}

// Writer returns a producer that waits until all replicas have a record; kafka-go's default does
// not wait. A message's WriterData is the partition that it goes to, an int; without it, the record
// key decides.
func (k *Kafka) Writer(topic string) *kafka.Writer {
	hash := &kafka.Hash{}
	return &kafka.Writer{Addr: k.client.Addr, Transport: k.transport, Topic: topic, RequiredAcks: kafka.RequireAll,
		BatchSize: 1000, BatchTimeout: 5 * time.Millisecond,
		Balancer: kafka.BalancerFunc(func(m kafka.Message, partitions ...int) int {
			if p, ok := m.WriterData.(int); ok {
				return partitions[p%len(partitions)]
			}
			return hash.Balance(m, partitions...)
		})}
}

// until repeats f, which fails while something is on its way, until it succeeds or ctx is done.
func until(ctx context.Context, f func() error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}
