package kafkasource

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// dialTimeout bounds the making of a connection, with TLS handshake and authentication.
	dialTimeout = 5 * time.Second
	// requestTimeout bounds a request, beyond what the broker may wait on its own account.
	requestTimeout = 10 * time.Second
	// layoutAge bounds the age of what kafka-go's Transport believes about the cluster.
	layoutAge = 2 * time.Second
	// closePatience is how long the end of Run waits for kafka-go's goroutines to notice that their connections are gone.
	closePatience = time.Second
)

// The highest versions asked for: the lowest that have everything used here. A broker that offers less is asked in its own highest version.
const (
	metadataVersion    = 12 // topic ids since 10
	fetchByNameVersion = 12
	fetchByIDVersion   = 13 // by topic id
	listOffsetsVersion = 7  // leader epochs since 4
	epochEndVersion    = 4  // OffsetForLeaderEpoch
	heartbeatVersion   = 4
	leaveGroupVersion  = 2 // one member a request
	configsVersion     = 4 // DescribeConfigs

	// Below these there are no transactions (Kafka 0.11).
	fetchMinVersion       = 4
	listOffsetsMinVersion = 2
)

// network is what one Run has of connections.
type network struct {
	cfg       Config
	log       *slog.Logger
	addr      net.Addr
	transport *kafka.Transport
	client    *kafka.Client
	data      *connections // the transport's
	group     *connections // the consumer group's
	format    *kmsg.RequestFormatter
	lastID    atomic.Int32 // correlation ids
	versions  sync.Map     // broker address -> apiVersions
}

func newNetwork(cfg Config) *network {
	n := &network{
		cfg: cfg, log: cfg.Logger.With("group", cfg.GroupID), addr: kafka.TCP(cfg.Brokers...),
		data: newConnections(dialTimeout), group: newConnections(dialTimeout),
		format: kmsg.NewRequestFormatter(kmsg.FormatterClientID(cfg.ClientID)),
	}
	n.transport = &kafka.Transport{
		Dial: n.data.dial, DialTimeout: dialTimeout, ClientID: cfg.ClientID, TLS: cfg.TLS, SASL: cfg.SASL,
		// Without names it would ask for all topics of the cluster, again and again.
		MetadataTTL: layoutAge, MetadataTopics: cfg.Topics,
	}
	n.client = &kafka.Client{Addr: n.addr, Transport: n.transport}
	return n
}

func (n *network) close() {
	n.transport.CloseIdleConnections()
	n.data.close(closePatience)
	n.group.close(closePatience)
}

// topic is what Metadata says about a topic.
type topic struct {
	clusterID  string
	id         [16]byte // zero: the broker knows no topic ids (before 2.8)
	partitions map[int32]place
}

// place is where a partition is led.
type place struct {
	leader int32
	epoch  int32
}

// topics asks the cluster for topics. The brokers are asked not to create any. An error is about all of them, or is that of the
// first topic that has one.
func (n *network) topics(ctx context.Context, names ...string) (map[string]topic, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = false
	for _, name := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	resp, err := call[*kmsg.MetadataResponse](ctx, n, n.request(req, metadataVersion))
	if err != nil {
		return nil, err
	}
	found := make(map[string]topic, len(names))
	for _, t := range resp.Topics {
		if t.Topic == nil || !slices.Contains(names, *t.Topic) {
			continue
		}
		if t.ErrorCode != 0 {
			return nil, &topicError{Topic: *t.Topic, Err: kafka.Error(t.ErrorCode)}
		}
		info := topic{id: t.TopicID, partitions: make(map[int32]place, len(t.Partitions))}
		if resp.ClusterID != nil {
			info.clusterID = *resp.ClusterID
		}
		for _, p := range t.Partitions {
			info.partitions[p.Partition] = place{leader: p.Leader, epoch: p.LeaderEpoch}
		}
		found[*t.Topic] = info
	}
	for _, name := range names {
		if _, ok := found[name]; !ok {
			return nil, &topicError{Topic: name, Err: kafka.UnknownTopicOrPartition}
		}
	}
	return found, nil
}

// topicError is what the cluster says about one topic.
type topicError struct {
	Topic string
	Err   error
}

func (e *topicError) Error() string { return fmt.Sprintf("topic %q: %v", e.Topic, e.Err) }
func (e *topicError) Unwrap() error { return e.Err }
