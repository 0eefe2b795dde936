package kafkalog

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onlyonce/onlyonce/consumer/source"
)

// Configurations of topics that are asked for.
const (
	CleanupPolicy = "cleanup.policy"
	retentionMs   = "retention.ms"
)

// Configs asks for configurations of topics, by topic and name. A value that the broker does not
// report is missing in the result. An error about one topic is a *TopicError.
func Configs(
	ctx context.Context,
	c Cluster,
	limit time.Duration,
	topics []string,
	names ...string,
) (map[string]map[string]string, error) {
	found := make(map[string]map[string]string, len(topics))
	err := RetryTransient(ctx, c, limit, func() error {
		req := kmsg.NewPtrDescribeConfigsRequest()
		for _, t := range topics {
			r := kmsg.NewDescribeConfigsRequestResource()
			r.ResourceType = kmsg.ConfigResourceTypeTopic
			r.ResourceName = t
			r.ConfigNames = names
			req.Resources = append(req.Resources, r)
		}
		resp, err := ask[*kmsg.DescribeConfigsResponse](ctx, c, nil, req)
		if err != nil {
			return err
		}
		for _, r := range resp.Resources {
			if r.ErrorCode != 0 {
				return &TopicError{Topic: r.ResourceName, Err: c.Error(r.ErrorCode)}
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

// Compacted says whether the topic is compacted now. For a user who may not see the configuration
// the answer is no, which makes a consumer look closer.
func (l *Log) Compacted(ctx context.Context) (bool, error) {
	configs, err := Configs(ctx, l.cluster, leaderPatience, []string{l.topic}, CleanupPolicy)
	if hasCode(l.cluster, err, kerr.TopicAuthorizationFailed) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%v: %s of the topic: %w", l, CleanupPolicy, err)
	}
	return Compacts(configs[l.topic][CleanupPolicy]), nil
}

// Compacts says whether a cleanup.policy, which may be a list, has the brokers compact a topic.
func Compacts(policy string) bool {
	return slices.Contains(strings.Split(strings.ReplaceAll(policy, " ", ""), ","), "compact")
}

// Retained reads the record and adds the topic's retention.ms, both as they are now. A user who may
// not see the configuration, like a topic without such a bound, gets the zero time.
func (l *Log) Retained(ctx context.Context, offset int64) (time.Time, error) {
	configs, err := Configs(ctx, l.cluster, leaderPatience, []string{l.topic}, retentionMs)
	if hasCode(l.cluster, err, kerr.TopicAuthorizationFailed) {
		return time.Time{}, l.checkHeld(ctx, offset)
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("%v: %s of the topic: %w", l, retentionMs, err)
	}
	ms, err := strconv.ParseInt(configs[l.topic][retentionMs], 10, 64)
	if err != nil || ms < 0 {
		// The broker reports no value, or that there is no bound.
		return time.Time{}, l.checkHeld(ctx, offset)
	}
	defer func(read lastRead, rest *unreadResponse) { // a look aside is no part of what is read in order
		l.dropUnread()
		l.lastRead = read
		l.unread = rest
	}(l.lastRead, l.unread)
	l.unread = nil
	for {
		got, err := l.Fetch(ctx, offset, 1)
		switch {
		case err != nil:
			return time.Time{}, err
		case len(got.Messages) > 0:
			return got.Messages[0].Time.Add(retentionTime(ms)), nil
		case got.Next == offset:
			return time.Time{}, nil
		}
		offset = got.Next // behind what was aborted
	}
}

// checkHeld returns an OutOfRangeError if the log does not hold an offset.
func (l *Log) checkHeld(ctx context.Context, offset int64) error {
	b, err := l.Bounds(ctx)
	if err == nil && (offset < b.Start || offset > b.End) {
		err = &source.OutOfRangeError{Offset: offset, Start: b.Start, End: b.End}
	}
	return err
}

// retentionTime is a number of milliseconds as a duration; more than one can hold (292 years) is as
// long as one can be.
func retentionTime(ms int64) time.Duration {
	return time.Duration(min(ms, int64(time.Duration(1<<63-1)/time.Millisecond))) * time.Millisecond
}
