package kafkasource

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onlyonce/onlyonce/consumer/internal/kafkalog"
	"github.com/onlyonce/onlyonce/consumer/internal/recordbatch"
)

const (
	// dialTimeout bounds making a connection, including the TLS handshake and authentication.
	dialTimeout = 5 * time.Second
	// requestTimeout bounds a request, in addition to the time for which the broker may wait by
	// itself.
	requestTimeout = 10 * time.Second
	// metadataAge bounds the age of kafka-go's view of the cluster.
	metadataAge = 2 * time.Second
	// closePatience is how long the end of Run waits for kafka-go's goroutines to notice that their
	// connections are closed.
	closePatience = time.Second
)

// requestVersions returns the highest version to ask for and the lowest that is sufficient. A
// broker that offers less than the highest is asked in its own highest version.
func requestVersions(req kmsg.Request) (most, least int16) {
	switch r := req.(type) {
	case *kmsg.FetchRequest:
		if r.Topics[0].TopicID == [16]byte{} {
			return kafkalog.FetchByID - 1, kafkalog.FetchMinVersion
		}
		return kafkalog.FetchByID, kafkalog.FetchMinVersion
	case *kmsg.MetadataRequest:
		return 12, 0 // topic ids since 10
	case *kmsg.ListOffsetsRequest:
		return 7, kafkalog.ListOffsetsMinVersion // leader epochs since 4
	case *kmsg.LeaveGroupRequest:
		return 2, 0 // one member in each request
	case *kmsg.OffsetForLeaderEpochRequest, *kmsg.HeartbeatRequest, *kmsg.DescribeConfigsRequest:
		return 4, 0
	}
	return 0, 0
}

// network is the connections of one Run.
type network struct {
	cfg        Config
	log        *slog.Logger
	addr       net.Addr
	transport  *kafka.Transport
	client     *kafka.Client
	dataConns  *connections // the transport's
	groupConns *connections // the consumer group's
	format     *kmsg.RequestFormatter
	lastID     atomic.Int32 // correlation ids
	versions   sync.Map     // broker address -> apiVersions
	codecs     *recordbatch.Codecs
}

func newNetwork(cfg Config) *network {
	n := &network{
		cfg: cfg, log: cfg.Logger.With("group", cfg.GroupID), addr: kafka.TCP(cfg.Brokers...),
		dataConns: newConnections(dialTimeout), groupConns: newConnections(dialTimeout, cfg.Brokers...),
		format: kmsg.NewRequestFormatter(kmsg.FormatterClientID(cfg.ClientID)), codecs: recordbatch.NewCodecs(),
	}
	n.transport = &kafka.Transport{
		Dial: n.dataConns.dial, DialTimeout: dialTimeout, ClientID: cfg.ClientID, TLS: cfg.TLS, SASL: cfg.SASL,
		// Without names the Transport would ask for all topics of the cluster, repeatedly.
		MetadataTTL: metadataAge, MetadataTopics: cfg.Topics,
	}
	n.client = &kafka.Client{Addr: n.addr, Transport: n.transport}
	return n
}

func (n *network) close() {
	n.transport.CloseIdleConnections()
	n.dataConns.close(closePatience)
	n.groupConns.close(closePatience)
}

var _ kafkalog.Cluster = (*network)(nil)

// Ask sends a request to any broker.
func (n *network) Ask(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	return n.send(ctx, n.newRequest(req))
}

// AskLeader sends a request to a broker.
func (n *network) AskLeader(ctx context.Context, leader int32, req kmsg.Request) (kmsg.Response, error) {
	return n.send(ctx, &leaderRequest{*n.newRequest(req), leader})
}

// askCoordinator sends a request to the group's coordinator.
func (n *network) askCoordinator(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	return n.send(ctx, &coordinatorRequest{*n.newRequest(req)})
}

// Error returns kafka-go's error for a broker's code.
func (n *network) Error(code int16) error {
	if code == 0 {
		return nil
	}
	return kafka.Error(code)
}

// Code returns the broker's code in kafka-go's error.
func (n *network) Code(err error) (int16, bool) {
	var code kafka.Error
	ok := errors.As(err, &code)
	return int16(code), ok
}

// readOptions returns the options for reading a partition.
func (n *network) readOptions() kafkalog.Options {
	return kafkalog.Options{
		MaxBytes:  n.cfg.FetchMaxBytes,
		MaxWait:   n.cfg.FetchMaxWait,
		MaxRecord: n.cfg.MaxRecordBytes,
		Codecs:    n.codecs,
		Throttled: func(topic string, partition int32, by time.Duration) {
			n.log.Debug("onlyonce: throttled by the broker", "topic", topic, "partition", partition, "for", by)
		},
	}
}
