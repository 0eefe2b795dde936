package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/consumer/internal/kafkalog"
)

const (
	// firstPatience bounds all waits of preflight for brokers.
	firstPatience = 30 * time.Second
	// newTopicPatience is how long a topic may be unknown: one just created is not known to all
	// brokers at once.
	newTopicPatience = 3 * time.Second
)

// preflight makes the first connection. It reports faults that a person has to correct, before the
// process joins the group: a process that cannot work must not take partitions from those that can.
func preflight(ctx context.Context, n *network) (map[string]kafkalog.Topic, error) {
	ctx, cancel := context.WithTimeout(ctx, firstPatience)
	defer cancel()
	var topics map[string]kafkalog.Topic
	var unreachable error
	err := kafkalog.RetryTransient(ctx, n, newTopicPatience, func() (err error) {
		err = kafkalog.TryBrokers(ctx, len(n.cfg.Brokers), func(ctx context.Context) (err error) {
			topics, err = kafkalog.Topics(ctx, n, n.cfg.Topics...)
			return err
		})
		var about *kafkalog.TopicError
		if err != nil && !errors.As(err, &about) {
			unreachable = err
			return nil // at once: a wrong address does not correct itself
		}
		return err
	})
	var about *kafkalog.TopicError
	switch {
	case unreachable != nil:
		return nil, n.explainUnreachable(unreachable)
	case errors.Is(err, kafka.TopicAuthorizationFailed):
		return nil, fmt.Errorf("kafkasource: %w: this user needs the permissions Describe, Read and DescribeConfigs on the topic", err)
	case errors.Is(err, kafka.UnknownTopicOrPartition) && errors.As(err, &about):
		return nil, fmt.Errorf("kafkasource: topic %q does not exist on %s: create it first (it is not left to the brokers' auto-creation, which would choose its number of partitions)",
			about.Topic, strings.Join(n.cfg.Brokers, ", "))
	case err != nil:
		return nil, fmt.Errorf("kafkasource: %w", err)
	}
	return topics, refuseCompacted(ctx, n)
}

// explainUnreachable explains what to do about brokers that do not answer.
func (n *network) explainUnreachable(err error) error {
	brokers := strings.Join(n.cfg.Brokers, ", ")
	var refused kafka.Error
	switch {
	case errors.As(err, &refused):
		return fmt.Errorf("kafkasource: [%s] refused the connection: %w: check Config.SASL and Config.TLS", brokers, err)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("kafkasource: [%s] closed the connection: %w: do the brokers expect TLS or SASL (Config.TLS, Config.SASL)?", brokers, err)
	}
	return fmt.Errorf("kafkasource: cannot reach any of [%s]: %w: is the broker running? check the addresses (Config.Brokers; -brokers in our programs)", brokers, err)
}

// refuseCompacted refuses topics that the brokers compact (F8). Compaction deletes records that
// were never handled if a later one has the same key, and a reader cannot notice. It also deletes
// the record by which the consumer recognises the log. A later change of the policy is not noticed.
func refuseCompacted(ctx context.Context, n *network) error {
	configs, err := kafkalog.Configs(ctx, n, newTopicPatience, n.cfg.Topics, kafkalog.CleanupPolicy)
	switch {
	case errors.Is(err, kafka.TopicAuthorizationFailed):
		return fmt.Errorf("kafkasource: may not see whether a topic is compacted: %w: this user needs the permission DescribeConfigs on it", err)
	case err != nil:
		return fmt.Errorf("kafkasource: asking whether topics are compacted: %w", err)
	}
	var faults []error
	for _, t := range n.cfg.Topics {
		value, ok := configs[t][kafkalog.CleanupPolicy]
		switch {
		case !ok:
			faults = append(faults, fmt.Errorf("kafkasource: topic %q: the broker does not report its %s", t, kafkalog.CleanupPolicy))
		case kafkalog.Compacts(value):
			faults = append(faults, fmt.Errorf("kafkasource: topic %q is compacted (%s=%s), and is refused: compaction deletes records that were not handled yet, and a reader cannot notice it; use a topic with %s=delete, or read what is left of this one with package franzsource",
				t, kafkalog.CleanupPolicy, value, kafkalog.CleanupPolicy))
		}
	}
	return errors.Join(faults...)
}
