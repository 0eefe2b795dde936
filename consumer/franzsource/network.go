package franzsource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/onlyonce/onlyonce/consumer/internal/kafkalog"
	"github.com/onlyonce/onlyonce/consumer/internal/recordbatch"
)

const (
	// dialTimeout bounds making a connection, including its TLS handshake.
	dialTimeout = 5 * time.Second
	// requestTimeout bounds a request, in addition to the time for which the broker may wait by
	// itself.
	requestTimeout = 10 * time.Second
	// offsetsVersion is the last version of OffsetCommit and OffsetFetch that identifies topics by
	// name.
	offsetsVersion = 9
)

// network is the connections of one Run: a franz-go client that consumes nothing by itself.
type network struct {
	cfg      Config
	log      *slog.Logger
	client   *kgo.Client
	fetchers *fetchers
	codecs   *recordbatch.Codecs
}

var _ kafkalog.Cluster = (*network)(nil)

func newNetwork(cfg Config) (*network, error) {
	n := &network{cfg: cfg, log: cfg.Logger.With("group", cfg.GroupID), codecs: recordbatch.NewCodecs()}
	most := kversion.Stable()
	least := new(kversion.Versions)
	most.SetMaxKeyVersion(kmsg.OffsetCommit.Int16(), offsetsVersion)
	most.SetMaxKeyVersion(kmsg.OffsetFetch.Int16(), offsetsVersion)
	least.SetMaxKeyVersion(kmsg.Fetch.Int16(), kafkalog.FetchMinVersion)
	least.SetMaxKeyVersion(kmsg.ListOffsets.Int16(), kafkalog.ListOffsetsMinVersion)
	opts := []kgo.Opt{
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.ClientID(cfg.ClientID),
		kgo.WithLogger(logger{n.log}),
		kgo.MaxVersions(most),
		kgo.MinVersions(least),
		kgo.DialTimeout(dialTimeout),
		kgo.RequestTimeoutOverhead(requestTimeout),
		kgo.BrokerMaxReadBytes(1 << 30), // a batch may be larger than any limit
		// Callers repeat their requests and know for how long. The client needs to retry only to
		// move on to another broker.
		kgo.RequestRetries(len(cfg.Brokers) + 2),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
		kgo.DisableClientMetrics(),
	}
	if cfg.TLS != nil {
		opts = append(opts, kgo.DialTLSConfig(cfg.TLS))
	}
	if cfg.SASL != nil {
		opts = append(opts, kgo.SASL(cfg.SASL))
	}
	var err error
	if n.client, err = kgo.NewClient(opts...); err != nil {
		return nil, fmt.Errorf("franzsource: %w", err)
	}
	n.fetchers = newFetchers(n.client)
	return n, nil
}

func (n *network) close() {
	n.fetchers.close()
	n.client.Close()
}

// Ask sends a request to any broker, or to the one that is responsible: franz-go finds the
// coordinator of a group.
func (n *network) Ask(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	resp, err := n.client.Request(ctx, req)
	return n.wrapError(req, resp, err)
}

// AskLeader sends a request to a broker. A fetch travels together with those of other partitions.
func (n *network) AskLeader(ctx context.Context, leader int32, req kmsg.Request) (kmsg.Response, error) {
	if f, ok := req.(*kmsg.FetchRequest); ok {
		resp, err := n.fetchers.fetch(ctx, leader, f)
		return n.wrapError(req, resp, err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	resp, err := n.client.Broker(int(leader)).Request(ctx, req)
	return n.wrapError(req, resp, err)
}

// wrapError adds to an error which request it was, and gives the error of a closed client its own
// type.
func (n *network) wrapError(req kmsg.Request, resp kmsg.Response, err error) (kmsg.Response, error) {
	if err == nil {
		return resp, nil
	}
	if n.client.Context().Err() != nil {
		err = kafkalog.ErrClosed
	}
	return nil, fmt.Errorf("%s: %w", kmsg.NameForKey(req.Key()), err)
}

// ask is Ask for a response of a known type, without a timeout.
func ask[R kmsg.Response](ctx context.Context, n *network, req kmsg.Request) (R, error) {
	var none R
	got, err := n.client.Request(ctx, req)
	if _, err = n.wrapError(req, got, err); err != nil {
		return none, err
	}
	resp, ok := got.(R)
	if !ok {
		return none, fmt.Errorf("%s: answered with a %T", kmsg.NameForKey(req.Key()), got)
	}
	return resp, nil
}

// Error returns franz-go's error for a broker's code.
func (n *network) Error(code int16) error { return kerr.ErrorForCode(code) }

// Code returns the broker's code in franz-go's error.
func (n *network) Code(err error) (int16, bool) {
	var code *kerr.Error
	if !errors.As(err, &code) {
		return 0, false
	}
	return code.Code, true
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

// logger passes franz-go's log on at the level debug: whatever matters is also returned as an
// error.
type logger struct{ to *slog.Logger }

func (l logger) Level() kgo.LogLevel {
	if l.to.Enabled(context.Background(), slog.LevelDebug) {
		return kgo.LogLevelInfo
	}
	return kgo.LogLevelNone
}

func (l logger) Log(_ kgo.LogLevel, msg string, keyvals ...any) {
	l.to.Debug("onlyonce: franz-go: "+msg, keyvals...)
}
