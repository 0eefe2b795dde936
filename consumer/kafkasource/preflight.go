package kafkasource

import (
	"context"
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/consumer/internal/kafkalog"
)

// refuseCompacted refuses topics that the brokers compact (F8). Compaction deletes records that
// were never handled if a later one has the same key, and a reader cannot notice. It also deletes
// the record by which the consumer recognises the log. A later change of the policy is not noticed.
func refuseCompacted(ctx context.Context, n *network) error {
	ctx, cancel := context.WithTimeout(ctx, kafkalog.FirstPatience)
	defer cancel()
	var configs map[string]map[string]string
	err := kafkalog.TryBrokers(ctx, len(n.cfg.Brokers), func(ctx context.Context) (err error) {
		configs, err = kafkalog.Configs(ctx, n, kafkalog.NewTopicPatience, n.cfg.Topics, kafkalog.CleanupPolicy)
		return err
	})
	switch {
	case errors.Is(err, kafka.TopicAuthorizationFailed):
		return fmt.Errorf("kafkasource: may not see whether a topic is compacted: %w: this user needs the "+
			"permission DescribeConfigs on it", err)
	case err != nil:
		return fmt.Errorf("kafkasource: asking whether topics are compacted: %w", err)
	}
	var faults []error
	for _, t := range n.cfg.Topics {
		value, ok := configs[t][kafkalog.CleanupPolicy]
		switch {
		case !ok:
			faults = append(
				faults,
				fmt.Errorf("kafkasource: topic %q: the broker does not report its %s", t, kafkalog.CleanupPolicy),
			)
		case kafkalog.Compacts(value):
			faults = append(
				faults,
				fmt.Errorf("kafkasource: topic %q is compacted (%s=%s), and is refused: compaction deletes "+
					"records that were not handled yet, and a reader cannot notice it; use a topic with "+
					"%s=delete, or read what is left of this one with package franzsource",
					t, kafkalog.CleanupPolicy, value, kafkalog.CleanupPolicy),
			)
		}
	}
	return errors.Join(faults...)
}
