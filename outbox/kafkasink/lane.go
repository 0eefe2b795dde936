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

// lane holds the calls that wait for one partition. It sends one request at a time: of two
// concurrent ones, the later could be written first.
type lane struct {
	waiting []*entry
	busy    bool // a goroutine sends
}

// entry is a call that waits in a lane.
type entry struct {
	*record
	party    *party
	index    int // in the party
	mayStart func() error
	// skip is the reason why the last request left the call out. It is written before that request
	// and read after its answer.
	skip error
	over atomic.Bool // its end was reported
}

// end reports how the last request ended, for an entry that was part of it.
func (e *entry) end(err error) {
	if err == nil && e.skip != nil {
		err = e.skip
	}
	e.party.end(e, err)
}

// party is the calls of one Send or SendBatch. They share a context.
type party struct {
	ctx    context.Context
	notify func(index int, err error)
	left   atomic.Int64
	all    chan struct{} // closed once the end of each call was reported
}

// end reports how a call ended, unless that was reported before.
func (p *party) end(e *entry, err error) {
	if e.over.Swap(true) {
		return
	}
	p.notify(e.index, err)
	if p.left.Add(-1) == 0 {
		close(p.all)
	}
}

// enqueue adds entries to the lanes of their partitions and starts a sender for each lane that has
// none.
func (s *Sink) enqueue(topic string, partitions []int, entries []*entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range entries {
		p := place{topic, e.partition(partitions)}
		l := s.lanes[p]
		if l == nil {
			l = &lane{}
			s.lanes[p] = l
		}
		l.waiting = append(l.waiting, e)
		if !l.busy {
			l.busy = true
			go s.send(p, l)
		}
	}
}

// send sends what waits in a lane, one batch at a time, until the lane is empty.
func (s *Sink) send(p place, l *lane) {
	for batch := s.take(l); len(batch) > 0; batch = s.take(l) {
		err := s.attempt(p, batch)
		if len(batch) > 1 && aboutContents(err) {
			// The broker wrote nothing of the batch. Each record is sent alone, to find the faulty
			// one; the fault may also be the batch's size.
			for _, e := range batch {
				e.end(s.attempt(p, []*entry{e}))
			}
			continue
		}
		for _, e := range batch {
			e.end(err)
		}
	}
}

// take returns the next batch, or ends the lane's sender if nothing waits.
func (s *Sink) take(l *lane) []*entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, size := 0, 0
	for n < len(l.waiting) {
		if size += l.waiting[n].size(); n > 0 && size > s.cfg.BatchBytes {
			break
		}
		n++
	}
	batch := l.waiting[:n:n]
	if l.waiting = l.waiting[n:]; n == 0 {
		l.waiting, l.busy = nil, false
	}
	return batch
}

// errRefused marks errors that no further attempt corrects.
var errRefused = errors.New("kafka refused it")

// errVersion is a broker whose records have no headers.
var errVersion = errors.New("the broker is older than 0.11: its records carry no message-id")

// attempt makes one request. It ends early when the contexts of all calls in the batch have ended.
func (s *Sink) attempt(p place, batch []*entry) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Timeout)
	defer cancel()
	var waiting atomic.Int64 // one more than the parties whose contexts have not ended
	waiting.Store(1)
	gone := func() {
		if waiting.Add(-1) == 0 {
			cancel()
		}
	}
	for i, e := range batch {
		if i == 0 || e.party != batch[i-1].party {
			waiting.Add(1)
			defer context.AfterFunc(e.party.ctx, gone)()
		}
	}
	gone()
	resp, err := s.transport.RoundTrip(ctx, s.addr, &exchange{Request: produce.Request{
		Acks: int16(kafka.RequireAll), // O10: the library's default is none
		// The brokers give up before the sink does, so that there is an answer.
		Timeout: int32((s.cfg.Timeout * 9 / 10).Milliseconds()),
		Topics:  []produce.RequestTopic{{Topic: p.topic, Partitions: []produce.RequestPartition{{Partition: int32(p.partition)}}}},
	}, sink: s, batch: batch})
	if err != nil {
		return err
	}
	if _, none := resp.(*skipped); none {
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

// exchange is a request that checks once more whether its calls may be made, when the connection
// exists and nothing is written yet. It implements protocol.RawExchanger, which kafka-go calls at
// that moment.
type exchange struct {
	produce.Request
	sink    *Sink
	batch   []*entry
	version int16
}

var (
	_ protocol.RawExchanger  = (*exchange)(nil)
	_ protocol.BrokerMessage = (*exchange)(nil)
)

// skipped is the answer to a request that was not made, because no call of its batch may be sent
// any more.
type skipped struct{ produce.Response }

// Prepare receives the version in which the broker takes the request.
func (x *exchange) Prepare(version int16) { x.version = version }

// Required is called by kafka-go.
func (x *exchange) Required(map[protocol.ApiKey]int16) bool { return true }

// RawExchange is called by kafka-go in the goroutine of a connection that has no other user
// meanwhile. After an error kafka-go closes the connection.
func (x *exchange) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	if x.version < 3 {
		return nil, errVersion
	}
	now := time.Now()
	var records []protocol.Record
	for _, e := range x.batch {
		if e.skip = e.party.ctx.Err(); e.skip == nil {
			e.skip = e.mayStart()
		}
		if e.skip == nil {
			records = append(records, e.wire(now))
		}
	}
	if len(records) == 0 {
		return new(skipped), nil
	}
	req := x.Request
	req.Topics[0].Partitions[0].RecordSet = protocol.RecordSet{Version: 2, Records: protocol.NewRecordReader(records...)}
	// Correlation ids distinguish requests that share a connection; this request has it for itself.
	resp, err := protocol.RoundTrip(rw, x.version, 1, x.sink.cfg.ClientID, &req)
	if err != nil {
		return nil, fmt.Errorf("the request may have been written: %w", err)
	}
	return resp, nil
}
