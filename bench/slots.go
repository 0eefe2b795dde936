package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
)

// sideBySide compares a consumer that runs several transactions of a partition at once with one
// that runs one. Both have the same messages, without ordering keys, in batches of 100.
type sideBySide struct {
	partitions int
	atOnce     int
	rate       int // messages a second that no side exceeds, for the length of the tape
	handler    consumer.Handler
}

// handlerSleeping waits for a millisecond in the server, once for each message.
func handlerSleeping(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	if _, err := tx.Exec(ctx, `select pg_sleep(0.001)`); err != nil {
		return err
	}
	return handlerQueued(ctx, tx, m)
}

func (k sideBySide) open(_ context.Context, _ *server, o options) (wrapped, plain side, err error) {
	perPartition := int(float64(k.rate)*(o.window+settle).Seconds())/k.partitions + 4*fetchLimit
	t := newTape(k.partitions, perPartition, orderedID)
	cfg := consumer.Config{Scope: "bench", BatchSize: 100, Key: consumer.HeaderKey(idHeader)}
	many := cfg
	many.Concurrency = k.atOnce
	return wrappedSide(t, k.handler, many), wrappedSide(t, k.handler, cfg), nil
}

// poisoned compares a consumer one of whose thousand ordering keys has a message that always fails
// with one that has none. The failing key's messages are set aside; the others count.
func poisoned(_ context.Context, _ *server, o options) (wrapped, plain side, err error) {
	t := newTape(1, int(60_000*(o.window+settle).Seconds())+4*fetchLimit, orderedID)
	cfg := consumer.Config{
		Scope: "bench", BatchSize: 100, Key: consumer.HeaderKey(idHeader), Concurrency: 4, OnFailure: consumer.ParkOrderingKey,
		OrderingKey: func(m *consumer.Message) []byte { return strconv.AppendInt(nil, m.Offset%1000, 10) },
	}
	failing := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 7 {
			return errPoison
		}
		return handlerWaiting(ctx, tx, m)
	}
	return wrappedSide(t, failing, cfg), wrappedSide(t, handlerWaiting, cfg), nil
}

var errPoison = errors.New("this message always fails")

// shared compares a member of a share group, and its keeper, with a consumer of the same messages,
// in batches of 100, 4 at once.
func shared(_ context.Context, _ *server, o options) (wrapped, plain side, err error) {
	t := newTape(1, int(60_000*(o.window+settle).Seconds())+4*fetchLimit, orderedID)
	cfg := consumer.Config{Scope: "bench", BatchSize: 100, Key: consumer.HeaderKey(idHeader), Concurrency: 4}
	end := int64(len(t.ids[0])/idBytes - fetchLimit)
	wrapped = consumerSide(1, end, handlerQueued, cfg, func(context.Context) (consumer.Source, error) {
		t.log.ClearCommitted(group)
		return &sharedTape{taped: taped{&memlog.Source{Log: t.log, GroupID: group}, t}, begun: make(chan struct{}), open: map[int64]bool{}}, nil
	})
	return wrapped, wrappedSide(t, handlerQueued, cfg), nil
}

// sharedTape is a tape of one partition, whose messages a share group delivers to this one member.
type sharedTape struct {
	taped
	begun chan struct{} // closed once the keeper has the partition
	of    source.Identity

	mu   sync.Mutex
	next int64          // the first message that was not delivered
	open map[int64]bool // first offsets of deliveries that were not answered
}

func (s *sharedTape) Run(ctx context.Context, own func(context.Context, source.Partition[*consumer.Message]) error) error {
	return s.taped.Run(ctx, func(ctx context.Context, p source.Partition[*consumer.Message]) (err error) {
		if s.of, err = p.Identity(ctx); err != nil {
			return err
		}
		close(s.begun)
		return own(ctx, p)
	})
}

func (s *sharedTape) Deliver(ctx context.Context, atOnce, most int, apply func(ctx context.Context, d source.Delivery[*consumer.Message]) source.Applied) error {
	select {
	case <-s.begun:
	case <-ctx.Done():
		return nil
	}
	var members sync.WaitGroup
	for range atOnce {
		members.Go(func() {
			for ctx.Err() == nil {
				d := s.take(int64(most))
				first := d.Messages[0].Offset
				for ctx.Err() == nil {
					out := apply(ctx, d)
					d.Messages = slices.DeleteFunc(d.Messages, func(m *consumer.Message) bool { return slices.Contains(out.Done, m.Offset) })
					if len(d.Messages) == 0 {
						s.answer(first)
						break
					}
					_ = until(ctx, time.Now().Add(10*time.Millisecond)) // the keeper has not taken the partition over yet
				}
			}
		})
	}
	members.Wait()
	return nil
}

func (s *sharedTape) take(most int64) source.Delivery[*consumer.Message] {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := s.next
	s.next, s.open[from] = from+most, true
	return source.Delivery[*consumer.Message]{
		ClusterID: s.of.ClusterID, TopicPartition: source.TopicPartition{Topic: s.of.Topic, Partition: s.of.Partition}, TopicID: s.of.TopicID,
		Messages: s.t.messages(s.of.Partition, from, most), Until: time.Now().Add(time.Minute),
	}
}

func (s *sharedTape) answer(first int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, first)
}

// Settled returns the first message of a delivery that is under way.
func (s *sharedTape) Settled(context.Context, string, int32) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	settled := s.next
	for first := range s.open {
		settled = min(settled, first)
	}
	return settled, nil
}
