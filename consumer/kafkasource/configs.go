package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Configurations of topics that are asked for.
const (
	cleanupPolicy = "cleanup.policy"
	retentionMs   = "retention.ms"
)

// configs asks for configurations of topics, by topic and name. What a broker does not tell is missing. An error that is about one
// topic is a *topicError.
func (n *network) configs(ctx context.Context, limit time.Duration, topics []string, names ...string) (map[string]map[string]string, error) {
	found := make(map[string]map[string]string, len(topics))
	err := patiently(ctx, limit, func() error {
		req := kmsg.NewPtrDescribeConfigsRequest()
		for _, t := range topics {
			r := kmsg.NewDescribeConfigsRequestResource()
			r.ResourceType, r.ResourceName, r.ConfigNames = kmsg.ConfigResourceTypeTopic, t, names
			req.Resources = append(req.Resources, r)
		}
		resp, err := call[*kmsg.DescribeConfigsResponse](ctx, n, n.request(req, configsVersion))
		if err != nil {
			return err
		}
		for _, r := range resp.Resources {
			if r.ErrorCode != 0 {
				return &topicError{Topic: r.ResourceName, Err: kafka.Error(r.ErrorCode)}
			}
			values := make(map[string]string, len(r.Configs))
			for _, c := range r.Configs {
				if c.Value != nil {
					values[c.Name] = *c.Value
				}
			}
			found[r.ResourceName] = values
		}
		return nil
	})
	return found, err
}

// Retained reads the record and adds the topic's retention.ms, both as they are now. A user who may not see the configuration, like
// a topic without such a bound, gets the zero time.
func (p *partition) Retained(ctx context.Context, offset int64) (time.Time, error) {
	configs, err := p.net.configs(ctx, leaderPatience, []string{p.topic}, retentionMs)
	if errors.Is(err, kafka.TopicAuthorizationFailed) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("%v: %s of the topic: %w", p, retentionMs, err)
	}
	ms, err := strconv.ParseInt(configs[p.topic][retentionMs], 10, 64)
	if err != nil || ms < 0 {
		return time.Time{}, nil //nolint:nilerr // the broker does not tell, or tells that there is no bound
	}
	defer func(was lastRead) { p.read = was }(p.read) // a look aside is no part of what is read in order
	for {
		got, err := p.Fetch(ctx, offset)
		switch {
		case err != nil:
			return time.Time{}, err
		case len(got.Messages) > 0:
			return got.Messages[0].Time.Add(retention(ms)), nil
		case got.Next == offset:
			return time.Time{}, nil
		}
		offset = got.Next // behind what was aborted
	}
}

// retention is a number of milliseconds as a duration; more than one can hold (292 years) is as long as one can be.
func retention(ms int64) time.Duration {
	return time.Duration(min(ms, int64(time.Duration(1<<63-1)/time.Millisecond))) * time.Millisecond
}
