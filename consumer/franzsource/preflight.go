package franzsource

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

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
func preflight(ctx context.Context, n *network) error {
	ctx, cancel := context.WithTimeout(ctx, firstPatience)
	defer cancel()
	var unreachable error
	err := kafkalog.RetryTransient(ctx, n, newTopicPatience, func() error {
		err := kafkalog.TryBrokers(ctx, len(n.cfg.Brokers), func(ctx context.Context) error {
			_, err := kafkalog.Topics(ctx, n, n.cfg.Topics...)
			return err
		})
		var about *kafkalog.TopicError
		if err != nil && !errors.As(err, &about) {
			unreachable = err
			return nil // at once: a wrong address does not correct itself
		}
		return err
	})
	if err == nil && unreachable == nil {
		return n.checkVersions(ctx)
	}
	var about *kafkalog.TopicError
	switch {
	case unreachable != nil:
		return n.explainUnreachable(unreachable)
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return fmt.Errorf("franzsource: %w: this user needs the permissions Describe and Read on the topic", err)
	case errors.Is(err, kerr.UnknownTopicOrPartition) && errors.As(err, &about):
		return fmt.Errorf("franzsource: topic %q does not exist on %s: create it first (it is not left to the brokers' auto-creation, which would choose its number of partitions)",
			about.Topic, strings.Join(n.cfg.Brokers, ", "))
	}
	return fmt.Errorf("franzsource: %w", err)
}

// checkVersions refuses brokers without transactions, which could be joined but not fetched from.
// It asks only one; franz-go refuses the others when a fetch goes to them.
func (n *network) checkVersions(ctx context.Context) error {
	var resp *kmsg.ApiVersionsResponse
	err := kafkalog.TryBrokers(ctx, len(n.cfg.Brokers), func(ctx context.Context) (err error) {
		resp, err = ask[*kmsg.ApiVersionsResponse](ctx, n, kmsg.NewPtrApiVersionsRequest())
		return err
	})
	if err != nil {
		return n.explainUnreachable(err)
	}
	for _, k := range resp.ApiKeys {
		if k.ApiKey == kmsg.Fetch.Int16() && k.MaxVersion >= kafkalog.FetchMinVersion {
			return nil
		}
	}
	return fmt.Errorf("franzsource: the brokers at [%s] are too old: this adapter needs Kafka 0.11 or later", strings.Join(n.cfg.Brokers, ", "))
}

// explainUnreachable explains what to do about brokers that do not answer.
func (n *network) explainUnreachable(err error) error {
	brokers := strings.Join(n.cfg.Brokers, ", ")
	var refused *kerr.Error
	switch {
	case errors.As(err, &refused):
		return fmt.Errorf("franzsource: [%s] refused the connection: %w: check Config.SASL and Config.TLS", brokers, err)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("franzsource: [%s] closed the connection: %w: do the brokers expect TLS or SASL (Config.TLS, Config.SASL)?", brokers, err)
	}
	return fmt.Errorf("franzsource: cannot reach any of [%s]: %w: is the broker running? check the addresses (Config.Brokers; -brokers in our programs)", brokers, err)
}
