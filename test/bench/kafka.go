package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
)

const (
	kafkaPartitions = 4
	kafkaBatch      = 100
	kafkaMost       = 250_000 // messages a partition: what a quick run may write to disk
)

// endToEnd reads one topic with both sides, each time as a new group.
func endToEnd(ctx context.Context, srv *server, o options) (wrapped, plain side, err error) {
	brokers, err := srv.brokers(ctx)
	if err != nil {
		return nil, nil, err
	}
	trial, err := runSide(ctx, srv, plainSide(kafkaPartitions, kafkaBatch, applyPipelined), trialWindow())
	if err != nil {
		return nil, nil, err
	}
	n := min(int(2*trial.rate()*(o.window+settle).Seconds())/kafkaPartitions+4*fetchLimit, kafkaMost)
	name := fmt.Sprintf("onlyonce-bench-%d", os.Getpid())
	if err := fillTopic(ctx, brokers, name, n); err != nil {
		return nil, nil, err
	}
	groups := 0
	newGroup := func() string { groups++; return fmt.Sprintf("%s-%d", name, groups) }
	cfg := consumer.Config{Scope: "bench", BatchSize: kafkaBatch, Key: consumer.HeaderKey(idHeader)}
	end := int64(n - kafkaBatch)
	wrapped = consumerSide(kafkaPartitions, end, handlerQueued, cfg, func(context.Context) (consumer.Source, error) {
		return kafkasource.New(kafkasource.Config{Brokers: brokers, GroupID: newGroup(), Topics: []string{name}}), nil
	})
	return wrapped, kafkaGoSide(brokers, name, newGroup, end), nil
}

// fillTopic makes a topic of n messages a partition, with ids ordered by time.
func fillTopic(ctx context.Context, brokers []string, name string, n int) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic(name), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(ctx, kafkaPartitions, 1, nil, name); err != nil {
		return err
	}
	r := rand.NewChaCha8([32]byte{3})
	bodies := newBodies(r)
	var once sync.Once
	var failed error
	for i := range kafkaPartitions * n {
		client.Produce(ctx, &kgo.Record{Partition: int32(i % kafkaPartitions), Value: bodies[i%len(bodies)],
			Headers: []kgo.RecordHeader{{Key: idHeader, Value: []byte(orderedID(r, i).String())}}},
			func(_ *kgo.Record, err error) {
				if err != nil {
					once.Do(func() { failed = err })
				}
			})
	}
	return errors.Join(client.Flush(ctx), failed)
}

// kafkaGoSide is what users write by hand: a reader of the group for each partition, a batch in one
// pipelined transaction, then the offset. kafka-go commits the offset after the batch, every 100 ms
// as the consumer does.
func kafkaGoSide(brokers []string, name string, newGroup func() string, end int64) side {
	return func(ctx context.Context, db *database, w *window) (sample, error) {
		pool, err := db.open(ctx, kafkaPartitions)
		if err != nil {
			return sample{}, err
		}
		var count atomic.Int64
		begun := make(chan struct{})
		dry := make(chan struct{})
		failed := make(chan error, kafkaPartitions)
		var began, drained sync.Once
		reading, stop := context.WithCancel(ctx)
		defer stop()
		id := newGroup()
		var readers sync.WaitGroup
		for range kafkaPartitions {
			readers.Go(func() {
				r := kafka.NewReader(kafka.ReaderConfig{Brokers: brokers, GroupID: id, Topic: name, StartOffset: kafka.FirstOffset,
					CommitInterval: 100 * time.Millisecond, MaxBytes: 1 << 20, QueueCapacity: 2 * fetchLimit})
				defer func() { _ = r.Close() }()
				msgs, bodies := make([]kafka.Message, kafkaBatch), make([][]byte, kafkaBatch)
				for {
					for i := range msgs {
						m, err := r.FetchMessage(reading)
						if err != nil {
							if reading.Err() == nil {
								failed <- err
							}
							return
						}
						msgs[i], bodies[i] = m, m.Value
					}
					if err := applyPipelined(ctx, pool, msgs[0].Offset, bodies); err != nil {
						failed <- err
						return
					}
					count.Add(kafkaBatch)
					began.Do(func() { close(begun) })
					if msgs[kafkaBatch-1].Offset >= end {
						drained.Do(func() { close(dry) })
					}
					if err := r.CommitMessages(reading, msgs[kafkaBatch-1]); err != nil && reading.Err() == nil {
						failed <- err
						return
					}
				}
			})
		}
		var got sample
		if err = first(ctx, begun, failed); err == nil {
			got, err = w.watch(ctx, db, count.Load, dry, failed)
		}
		stop()
		readers.Wait()
		if err != nil {
			return got, err
		}
		return got, db.verify(ctx, count.Load())
	}
}
