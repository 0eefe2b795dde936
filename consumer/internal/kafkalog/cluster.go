// Package kafkalog reads one partition of a Kafka topic exactly, over any client that can carry
// requests: which incarnation of the topic it is, how far its log goes, what in it is committed,
// and whether what was read is still in it. The adapters share it, so all guard against the same
// faults; none uses its client's own way to read.
//
// Requests are written with kmsg, a description of Kafka's protocol without a client.
package kafkalog

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onlyonce/onlyonce/consumer/source"
)

// Lowest versions of requests that will do: below these there are no transactions (Kafka 0.11).
const (
	FetchMinVersion       = 4
	ListOffsetsMinVersion = 2
)

// FetchByID is the version since which fetches name the topic by its id (Kafka 3.1).
const FetchByID = 13

// Cluster carries requests to brokers. Methods may be called from several goroutines.
type Cluster interface {
	// Ask sends a request to any broker.
	Ask(ctx context.Context, req kmsg.Request) (kmsg.Response, error)
	// AskLeader sends a request about one partition to the broker that leads it. A fetch may be
	// merged with those for other partitions, if the response to each is no later for it, and as
	// complete as if it had been sent alone: one without records says that there are none, and not
	// that others have used up the response's size.
	AskLeader(ctx context.Context, leader int32, req kmsg.Request) (kmsg.Response, error)
	// Error returns the client library's error for a broker's code, nil for 0.
	Error(code int16) error
	// Code returns the broker's code that an error wraps.
	Code(err error) (code int16, ok bool)
}

// ErrClosed is what a Cluster's requests end with after Run has returned.
var ErrClosed = errors.New("Run has returned")

// ask sends a request to any broker, or to the leader of a partition.
func ask[R kmsg.Response](ctx context.Context, c Cluster, leader *int32, req kmsg.Request) (R, error) {
	var none R
	var got kmsg.Response
	var err error
	if leader == nil {
		got, err = c.Ask(ctx, req)
	} else {
		got, err = c.AskLeader(ctx, *leader, req)
	}
	if err != nil {
		return none, err
	}
	resp, ok := got.(R)
	if !ok {
		return none, fmt.Errorf("%s: answered with a %T", kmsg.NameForKey(req.Key()), got)
	}
	return resp, nil
}

// hasCode says whether an error wraps one of the brokers' codes.
func hasCode(c Cluster, err error, codes ...*kerr.Error) bool {
	code, ok := c.Code(err)
	return ok && slices.ContainsFunc(codes, func(e *kerr.Error) bool { return e.Code == code })
}

// Topic is what Metadata says about a topic.
type Topic struct {
	ClusterID  string
	ID         [16]byte // zero: the broker knows no topic ids (before 2.8)
	Partitions map[int32]Leadership
}

// Leadership is where a partition is led.
type Leadership struct {
	Leader int32
	Epoch  int32
}

// Topics asks the cluster for topics. The brokers are asked not to create any. An error is about
// all of them, or is the *TopicError of the first topic that has one.
func Topics(ctx context.Context, c Cluster, names ...string) (map[string]Topic, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = false
	for _, name := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	resp, err := ask[*kmsg.MetadataResponse](ctx, c, nil, req)
	if err != nil {
		return nil, err
	}
	found := make(map[string]Topic, len(names))
	for _, t := range resp.Topics {
		if t.Topic == nil || !slices.Contains(names, *t.Topic) {
			continue
		}
		if t.ErrorCode != 0 {
			return nil, &TopicError{
				Topic: *t.Topic,
				Err:   c.Error(t.ErrorCode),
				gone:  t.ErrorCode == kerr.UnknownTopicOrPartition.Code,
			}
		}
		info := Topic{ID: t.TopicID, Partitions: make(map[int32]Leadership, len(t.Partitions))}
		if resp.ClusterID != nil {
			info.ClusterID = *resp.ClusterID
		}
		for _, p := range t.Partitions {
			info.Partitions[p.Partition] = Leadership{Leader: p.Leader, Epoch: p.LeaderEpoch}
		}
		found[*t.Topic] = info
	}
	for _, name := range names {
		if _, ok := found[name]; !ok {
			return nil, noTopic(c, name)
		}
	}
	return found, nil
}

// TopicError is what the cluster says about one topic.
type TopicError struct {
	Topic string
	Err   error
	gone  bool // it does not exist
}

func noTopic(c Cluster, name string) *TopicError {
	return &TopicError{Topic: name, Err: c.Error(kerr.UnknownTopicOrPartition.Code), gone: true}
}

func (e *TopicError) Error() string { return fmt.Sprintf("topic %q: %v", e.Topic, e.Err) }
func (e *TopicError) Unwrap() error { return e.Err }

// Is reports the sentinel of a topic that does not exist.
func (e *TopicError) Is(target error) bool { return e.gone && target == source.ErrNoTopic }
