package kafkasink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"
)

// produce makes one request. It ends early when the contexts of all calls in the batch have ended
// (O10).
func (s *Sink) produce(p topicPartition, batch []*queuedCall) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Timeout)
	defer cancel()
	var waiting atomic.Int64 // one more than the parties whose contexts have not ended
	waiting.Store(1)
	gone := func() {
		if waiting.Add(-1) == 0 {
			cancel()
		}
	}
	for i, c := range batch {
		if i == 0 || c.group != batch[i-1].group {
			waiting.Add(1)
			defer context.AfterFunc(c.group.ctx, gone)()
		}
	}
	gone()
	exchange := &produceExchange{Request: produce.Request{
		Acks: int16(kafka.RequireAll), // O10: the library's default is none
		// The brokers give up before the sink does, so that there is an answer.
		Timeout: int32((s.cfg.Timeout * 9 / 10).Milliseconds()),
		Topics: []produce.RequestTopic{{
			Topic:      p.topic,
			Partitions: []produce.RequestPartition{{Partition: int32(p.partition)}},
		}},
	}, sink: s, batch: batch}
	resp, err := s.transport.RoundTrip(ctx, s.addr, exchange)
	switch {
	case err != nil && !exchange.written.Load() && ctx.Err() == nil: // it found no broker
		return fmt.Errorf("%w: %w", errUnsent, err)
	case err != nil:
		return err
	}
	if _, none := resp.(*skippedResponse); none {
		return nil
	}
	r, ok := resp.(*produce.Response)
	if !ok || len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
		return errors.New("the answer is not about this partition")
	}
	if code := r.Topics[0].Partitions[0].ErrorCode; code != 0 {
		return kafka.Error(code)
	}
	return nil
}

// produceExchange is a request that checks once more whether its calls may be made, when the
// connection exists and nothing is written yet. It implements protocol.RawExchanger, which kafka-go
// calls at that moment.
type produceExchange struct {
	produce.Request
	sink    *Sink
	batch   []*queuedCall
	version int16
	written atomic.Bool // the request may have been written
}

var (
	_ protocol.RawExchanger  = (*produceExchange)(nil)
	_ protocol.BrokerMessage = (*produceExchange)(nil)
)

// skippedResponse is the answer to a request that was not made, because no call of its batch may be
// sent any more.
type skippedResponse struct{ produce.Response }

// Prepare receives the version in which the broker takes the request.
func (x *produceExchange) Prepare(version int16) { x.version = version }

// Required is called by kafka-go.
func (x *produceExchange) Required(map[protocol.ApiKey]int16) bool { return true }

// RawExchange is called by kafka-go in the goroutine of a connection that has no other user
// meanwhile. After an error kafka-go closes the connection (O6, O10).
func (x *produceExchange) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	if x.version < 3 {
		return nil, errOldBroker
	}
	now := time.Now()
	var records []protocol.Record
	for _, c := range x.batch {
		if c.skip = c.group.ctx.Err(); c.skip == nil {
			c.skip = c.mayStart()
		}
		if c.skip == nil {
			records = append(records, c.protocolRecord(now))
		}
	}
	if len(records) == 0 {
		return new(skippedResponse), nil
	}
	req := x.Request
	req.Topics[0].Partitions[0].RecordSet = protocol.RecordSet{
		Version: 2,
		Records: protocol.NewRecordReader(records...),
	}
	// Correlation ids distinguish requests that share a connection; this request has it for itself.
	x.written.Store(true)
	resp, err := protocol.RoundTrip(rw, x.version, 1, x.sink.cfg.ClientID, &req)
	if err != nil {
		return nil, fmt.Errorf("the request may have been written: %w", err)
	}
	return resp, nil
}
