package kafkasink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/onlyonce/onlyonce/internal/frozen"
	"github.com/onlyonce/onlyonce/outbox"
)

// callRecord is a call in the form in which Kafka gets it.
type callRecord struct {
	topic   string
	key     []byte // nil: none
	id      string // the call's derived key
	order   string // stored form of its ordering key, empty without one
	headers []protocol.Header
	value   []byte
}

// targetRoute is a parsed and accepted target.
type targetRoute struct {
	target string
	topic  string
	key    []byte // nil: none
}

// parseRoute parses a target. It applies the rules of Enqueue again, because the row may have been
// written in SQL.
func (s *Sink) parseRoute(target string) (targetRoute, error) {
	err := frozen.Target(target)
	r := targetRoute{target: target}
	if err == nil {
		r.topic, r.key, err = parseTarget(target)
	}
	switch {
	case err != nil:
		return targetRoute{}, fmt.Errorf("target: %w", err)
	case !slices.Contains(s.cfg.Topics, r.topic):
		return targetRoute{}, fmt.Errorf("target: topic %.60s is not among the sink's topics", r.topic)
	}
	return r, nil
}

// newRecord builds the record from the row, by the rules of Enqueue. last is the route of the
// previous call, which is usually the same; it is replaced by this call's (O10).
func (s *Sink) newRecord(a *outbox.Attempt, last *targetRoute) (*callRecord, error) {
	if a.Method != http.MethodPost {
		return nil, errors.New("method: must be POST, which is the default: a record has none")
	}
	if last.topic == "" || a.Target != last.target {
		var err error
		if *last, err = s.parseRoute(a.Target); err != nil {
			return nil, err
		}
	}
	r := &callRecord{id: a.Key, order: a.Order, value: a.Body, topic: last.topic, key: last.key}
	names, values, faults := frozen.Headers(a.Header)
	if len(faults) > 0 {
		return nil, fmt.Errorf("header: %w", faults[0])
	}
	if r.value == nil {
		r.value = []byte{} // null would be a tombstone
	}
	r.headers = append(r.headers, protocol.Header{Key: s.cfg.IDHeader, Value: []byte(a.Key)})
	for i, n := range names {
		// Names in a row are in HTTP's canonical form. Kafka compares names byte for byte, and its
		// conventions use lower case (ce_id, traceparent).
		n = strings.ToLower(n)
		if n == s.cfg.IDHeader {
			return nil, fmt.Errorf("header: %s is the sink's own: it carries the call's key", n)
		}
		r.headers = append(r.headers, protocol.Header{Key: n, Value: []byte(values[i])})
	}
	for _, t := range frozen.Trace(a.Header, a.Trace) {
		r.headers = append(r.headers, protocol.Header{Key: t[0], Value: []byte(t[1])})
	}
	return r, nil
}

// parseTarget splits a target: "/topic" or "/topic?key=KEY".
func parseTarget(target string) (topic string, key []byte, err error) {
	path, query, asked := strings.Cut(target, "?")
	topic, ok := strings.CutPrefix(path, "/")
	if !ok || !validTopic(topic) {
		return "", nil, errors.New("must be a slash and a topic, as /orders or /orders?key=17")
	}
	if !asked {
		return topic, nil, nil
	}
	values, err := url.ParseQuery(query)
	if err != nil || len(values) != 1 || len(values["key"]) != 1 {
		return "", nil, errors.New("must have no parameter but one key, as /orders?key=17")
	}
	return topic, []byte(values["key"][0]), nil
}

// choosePartition chooses among a topic's partitions as Java's default partitioner does. If there
// is no record key, the ordering key decides, and without one the call's own key. Attempts of one
// call must go to one partition, because copies in two partitions may be handled at the same time
// (O10).
func (r *callRecord) choosePartition(all []int) int {
	key := r.key
	if key == nil {
		key = []byte(cmp.Or(r.order, r.id))
	}
	return kafka.Murmur2Balancer{Consistent: true}.Balance(kafka.Message{Key: key}, all...)
}

// size is about how many bytes the record takes in a request.
func (r *callRecord) size() int {
	n := 64 + len(r.key) + len(r.value)
	for _, h := range r.headers {
		n += 10 + len(h.Key) + len(h.Value)
	}
	return n
}

// protocolRecord returns the record for one request, which consumes its readers.
func (r *callRecord) protocolRecord(now time.Time) protocol.Record {
	return protocol.Record{
		Time:    now,
		Key:     protocol.NewBytes(r.key),
		Value:   protocol.NewBytes(r.value),
		Headers: r.headers,
	}
}

// queuedCall is a call that waits in a partition's queue.
type queuedCall struct {
	*callRecord
	group    *sendGroup
	index    int // in the group
	mayStart func() error
	// skip is the reason why the last request left the call out. It is written before that request
	// and read after its answer.
	skip     error
	reported atomic.Bool // its end was reported
}

// reportEnd reports how the last request ended, for a call that was part of it.
func (c *queuedCall) reportEnd(err error) {
	if err == nil && c.skip != nil {
		err = c.skip
	}
	c.group.reportEnd(c, err)
}

// sendGroup is the calls of one Send or SendBatch. They share a context.
type sendGroup struct {
	ctx        context.Context
	report     func(index int, err error)
	unreported atomic.Int64
	done       chan struct{} // closed once the end of each call was reported
}

// reportEnd reports how a call ended, unless that was reported before.
func (g *sendGroup) reportEnd(c *queuedCall, err error) {
	if c.reported.Swap(true) {
		return
	}
	g.report(c.index, err)
	if g.unreported.Add(-1) == 0 {
		close(g.done)
	}
}
