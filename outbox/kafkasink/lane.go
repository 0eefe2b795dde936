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

// lane is what waits for one partition. One request is under way at a time: of two, the later one could be
// written first.
type lane struct {
	waiting []*entry
	busy    bool // somebody sends
}

// entry is a call that waits for its turn.
type entry struct {
	*record
	party    *party
	index    int // in the party
	mayStart func() error
	// skip is why it was left out of the last request. It is written before that request is, and read after its answer.
	skip error
	over atomic.Bool // its end is told
}

// end tells how the last request ended, to one that was part of it.
func (e *entry) end(err error) {
	if err == nil && e.skip != nil {
		err = e.skip
	}
	e.party.end(e, err)
}

// party is the calls of one Send or SendBatch: one context bounds them.
type party struct {
	ctx  context.Context
	tell func(index int, err error)
	left atomic.Int64
	all  chan struct{} // closed once the end of each is told
}

// end tells how a call ended, unless that is told already.
func (p *party) end(e *entry, err error) {
	if e.over.Swap(true) {
		return
	}
	p.tell(e.index, err)
	if p.left.Add(-1) == 0 {
		close(p.all)
	}
}

// enqueue hands entries to whoever sends for their partitions, and sees to it that somebody does.
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

// send sends what waits, a batch at a time, until nothing does.
func (s *Sink) send(p place, l *lane) {
	for batch := s.take(l); len(batch) > 0; batch = s.take(l) {
		err := s.attempt(p, batch)
		if len(batch) > 1 && aboutContents(err) {
			// Nothing of the batch was written. Each record is judged alone: the fault is one's, or the batch's size.
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

// take takes the next batch, or gives the lane up.
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

// errRefused marks what brokers will not change their mind about.
var errRefused = errors.New("kafka refused it")

// errVersion is a broker whose records have no headers.
var errVersion = errors.New("the broker is older than 0.11: its records carry no message-id")

// attempt makes one request, for as long as somebody waits for it.
func (s *Sink) attempt(p place, batch []*entry) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Timeout)
	defer cancel()
	var waiting atomic.Int64 // one more than parties whose contexts have not ended
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
		Acks: int16(kafka.RequireAll), // O10: the library's own default is none
		// The brokers give up before we do, so that there is an answer.
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

// exchange is a request that looks once more whether it may be made, when the connection is there and nothing is written yet. It
// implements protocol.RawExchanger, which kafka-go calls at that moment.
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

// skipped is the answer to a request that was not made: no entry of its batch may be sent any more.
type skipped struct{ produce.Response }

// Prepare is told the version in which the broker takes the request.
func (x *exchange) Prepare(version int16) { x.version = version }

// Required is asked by kafka-go.
func (x *exchange) Required(map[protocol.ApiKey]int16) bool { return true }

// RawExchange is called by kafka-go in the goroutine of a connection that nobody else uses meanwhile. After an error it closes the
// connection.
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
	// Correlation ids tell apart requests that share a connection; this one has it for itself.
	resp, err := protocol.RoundTrip(rw, x.version, 1, x.sink.cfg.ClientID, &req)
	if err != nil {
		return nil, fmt.Errorf("the request may have been written: %w", err)
	}
	return resp, nil
}
