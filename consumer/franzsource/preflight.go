package franzsource

import (
	"context"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onlyonce/onlyonce/consumer/internal/kafkalog"
)

// checkVersions refuses brokers without transactions, which could be joined but not fetched from.
// It asks only one; franz-go refuses the others when a fetch goes to them.
func (n *network) checkVersions(ctx context.Context) error {
	var resp *kmsg.ApiVersionsResponse
	err := kafkalog.TryBrokers(ctx, len(n.cfg.Brokers), func(ctx context.Context) (err error) {
		resp, err = ask[*kmsg.ApiVersionsResponse](ctx, n, kmsg.NewPtrApiVersionsRequest())
		return err
	})
	if err != nil {
		return kafkalog.Unreachable(n, "franzsource", n.cfg.Brokers, err)
	}
	for _, k := range resp.ApiKeys {
		if k.ApiKey == kmsg.Fetch.Int16() && k.MaxVersion >= kafkalog.FetchMinVersion {
			return nil
		}
	}
	return fmt.Errorf("franzsource: the brokers at [%s] are too old: this adapter needs Kafka 0.11 or later",
		strings.Join(n.cfg.Brokers, ", "))
}
