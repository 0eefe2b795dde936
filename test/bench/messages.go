package main

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
)

const (
	bodyBytes = 300
	idHeader  = "message-id"
	topic     = "bench"
	// perMilli is how many ordered ids fall into one millisecond: a hundred thousand messages a
	// second.
	perMilli = 100
)

// newID makes the n-th message's id.
type newID func(r *rand.ChaCha8, n int) uuid.UUID

// randomID is a UUIDv4.
func randomID(r *rand.ChaCha8, _ int) (id uuid.UUID) {
	_, _ = r.Read(id[:]) // never fails
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id
}

// orderedID is a UUIDv7 of a producer that makes perMilli of them in each millisecond.
func orderedID(r *rand.ChaCha8, n int) uuid.UUID {
	id := randomID(r, n)
	ms := uint64(1_750_000_000_000 + n/perMilli)
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], ms)
	copy(id[:6], b[2:])
	id[6] = id[6]&0x0f | 0x70
	return id
}

// tape is a topic in memory. It holds only the ids, and makes messages of them as they are fetched.
// A log of message values would be marked by each garbage collection, and the measurement would
// include that, although no real consumer has such a log.
type tape struct {
	log    *memlog.Log // empty, of the tape's length: it plays the group and the offsets
	ids    [][]byte    // for each partition, ids of idBytes each
	bodies [][]byte

	traceparents [][]byte // a second header, of each message another; nil: none

	every time.Duration // a message of each partition so often; 0: as fast as they are fetched
	start time.Time
}

// paced makes a tape play at a pace. Messages that were not fetched when they were due come all at
// once.
func (t *tape) paced(every time.Duration) *tape {
	t.every, t.start = every, time.Now()
	return t
}

const idBytes = 36

// newTape makes messages with ids that rise from one partition to the next in turn.
func newTape(partitions, perPartition int, id newID) *tape {
	r := rand.NewChaCha8([32]byte{1})
	t := &tape{log: memlog.NewLog(topic, partitions), ids: make([][]byte, partitions), bodies: newBodies(r)}
	for p := range t.ids {
		t.ids[p] = make([]byte, 0, perPartition*idBytes)
		t.log.Skip(int32(p), int64(perPartition))
	}
	for n := range partitions * perPartition {
		p := n % partitions
		t.ids[p] = append(t.ids[p], id(r, n).String()...)
	}
	return t
}

// taped is a consumer.Source that reads the tape.
type taped struct {
	*memlog.Source
	t *tape
}

func (s taped) Run(ctx context.Context, own func(context.Context, source.Partition[*consumer.Message]) error) error {
	return s.Source.Run(ctx, func(ctx context.Context, p source.Partition[*consumer.Message]) error {
		id, err := p.Identity(ctx)
		if err != nil {
			return err
		}
		return own(ctx, partition{p, s.t, id.Partition})
	})
}

type partition struct {
	source.Partition[*consumer.Message]
	t  *tape
	id int32
}

// Fetch returns the next messages of the tape, and waits forever at its end.
func (p partition) Fetch(ctx context.Context, from int64, most int) (source.Fetched[*consumer.Message], error) {
	end := int64(len(p.t.ids[p.id]) / idBytes)
	n := min(fetchLimit, end-from)
	if p.t.every > 0 && n > 0 {
		if err := until(ctx, p.t.start.Add(time.Duration(from)*p.t.every)); err != nil {
			return source.Fetched[*consumer.Message]{}, err
		}
		n = min(n, int64(time.Since(p.t.start)/p.t.every)+1-from)
	}
	if n <= 0 {
		<-ctx.Done()
		return source.Fetched[*consumer.Message]{}, ctx.Err()
	}
	got := source.Fetched[*consumer.Message]{
		Messages:      p.t.messages(p.id, from, n),
		Next:          from + n,
		LeaderEpoch:   -1,
		HighWatermark: end,
		LastStable:    end,
	}
	for i, m := range got.Messages {
		if most -= m.Size(); most < 0 && i > 0 {
			got.Messages, got.Next = got.Messages[:i], m.Offset
			break
		}
	}
	return got, nil
}

// messages makes n messages of a partition.
func (t *tape) messages(partition int32, from, n int64) []*consumer.Message {
	ids, each := t.ids[partition], 1
	if t.traceparents != nil {
		each = 2
	}
	made := make([]*consumer.Message, n)
	messages := make([]consumer.Message, n)
	headers := make([]consumer.Header, int(n)*each)
	for i := range messages {
		offset := from + int64(i)
		its := headers[i*each : (i+1)*each : (i+1)*each]
		its[0] = consumer.Header{Name: idHeader, Value: ids[offset*idBytes:][:idBytes:idBytes]}
		if each == 2 {
			its[1] = consumer.Header{Name: "traceparent", Value: t.traceparents[offset%int64(len(t.traceparents))]}
		}
		messages[i] = consumer.Message{
			Topic: topic, Partition: partition, Offset: offset, LeaderEpoch: -1, Time: time.UnixMilli(1_750_000_000_000 + offset/perMilli),
			Value: t.bodies[offset%int64(len(t.bodies))], Headers: its,
		}
		made[i] = &messages[i]
	}
	return made
}

// newBodies makes a few thousand bodies, so that they do not stay in the nearest cache.
func newBodies(r *rand.ChaCha8) [][]byte {
	bodies := make([][]byte, 4096)
	for i := range bodies {
		bodies[i] = make([]byte, bodyBytes)
		_, _ = r.Read(bodies[i])
	}
	return bodies
}

func until(ctx context.Context, due time.Time) error {
	t := time.NewTimer(time.Until(due))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
