package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/outbox/kafkasink"
)

const (
	httpConcurrency = 16
	httpRate        = 20_000 // rows for each second of a measurement
	kafkaSinkRate   = 60_000
)

// overHTTP compares the relay's calls with a loop that posts the same bodies to the same server in
// this process.
func overHTTP(_ context.Context, srv *server, o options) (wrapped, plain side, err error) {
	remote := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	srv.atEnd(remote.Close)
	sink, err := httpsink.New(httpsink.Config{Name: sinkName, BaseURL: remote.URL, KeyWindow: outbox.Forever, AllowPrivate: true})
	if err != nil {
		return nil, nil, err
	}
	srv.atEnd(sink.Close)
	rows := int(httpRate * o.window.Seconds())
	return relayDrain(sink, httpConcurrency, "/event").side(rows), postDrain(remote.URL + "/event").side(rows), nil
}

// postDrain posts bodies out of memory, in httpConcurrency loops.
func postDrain(url string) drain {
	bodies := newBodies(rand.NewChaCha8([32]byte{5}))
	return drain{connections: 1, run: func(ctx context.Context, _ *pgxpool.Pool, m *meter) error {
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: httpConcurrency}, Timeout: 30 * time.Second}
		defer client.CloseIdleConnections()
		return loops(ctx, m, httpConcurrency, 1, func(n int) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(bodies[n%len(bodies)]))
			if err != nil {
				return err
			}
			req.Header.Set("Idempotency-Key", uuid.NewString())
			resp, err := client.Do(req)
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, resp.Body)
			if err = errors.Join(err, resp.Body.Close()); err == nil && resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("answered %s", resp.Status)
			}
			return err
		})
	}}
}

// loops divides all rows among some goroutines, some rows at a time. do gets the number of the
// first one.
func loops(ctx context.Context, m *meter, goroutines, step int, do func(n int) error) error {
	failed := make(chan error, goroutines)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range goroutines {
		workers.Go(func() {
			for ctx.Err() == nil {
				n := next.Add(int64(step)) - int64(step)
				if n >= m.rows {
					return
				}
				if err := do(int(n)); err != nil {
					failed <- err
					return
				}
				m.done(min(step, int(m.rows-n)))
			}
		})
	}
	err := m.wait(ctx, failed)
	workers.Wait()
	return err
}

// overKafka compares the relay's records with those of a producer that asks for all
// acknowledgements: kafka-go's Writer, or franz-go's client.
func overKafka(producer func(brokers []string, topic string) drain) func(context.Context, *server, options) (side, side, error) {
	return func(ctx context.Context, srv *server, o options) (wrapped, plain side, err error) {
		brokers, err := srv.brokers(ctx)
		if err != nil {
			return nil, nil, err
		}
		name := fmt.Sprintf("onlyonce-bench-out-%d-%d", os.Getpid(), time.Now().UnixNano())
		client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
		if err != nil {
			return nil, nil, err
		}
		defer client.Close()
		if _, err := kadm.NewClient(client).CreateTopic(ctx, kafkaPartitions, 1, nil, name); err != nil {
			return nil, nil, err
		}
		sink, err := kafkasink.New(kafkasink.Config{Name: sinkName, Brokers: brokers, Topics: []string{name}, KeyWindow: outbox.Forever})
		if err != nil {
			return nil, nil, err
		}
		srv.atEnd(sink.Close)
		rows := int(kafkaSinkRate * o.window.Seconds())
		return relayDrain(sink, relayConcurrency, "/"+name).side(rows), producer(brokers, name).side(rows), nil
	}
}

const (
	// writerLoops equals the relay's concurrency, so that as many messages are under way on both
	// sides.
	writerLoops = 4
	writerBatch = relayConcurrency / writerLoops
)

// writerDrain writes messages out of memory.
func writerDrain(brokers []string, name string) drain {
	bodies := newBodies(rand.NewChaCha8([32]byte{5}))
	return drain{connections: 1, run: func(ctx context.Context, _ *pgxpool.Pool, m *meter) error {
		w := &kafka.Writer{
			Addr:         kafka.TCP(brokers...),
			Topic:        name,
			RequiredAcks: kafka.RequireAll,
			BatchSize:    writerBatch,
			BatchTimeout: time.Millisecond,
		}
		err := loops(ctx, m, writerLoops, writerBatch, func(n int) error {
			messages := make([]kafka.Message, min(writerBatch, int(m.rows)-n))
			for i := range messages {
				messages[i] = kafka.Message{
					Value:   bodies[(n+i)%len(bodies)],
					Headers: []kafka.Header{{Key: kafkasink.MessageID, Value: []byte(uuid.NewString())}},
				}
			}
			return w.WriteMessages(ctx, messages...)
		})
		return errors.Join(err, w.Close())
	}}
}

// franzDrain writes messages out of memory with franz-go, whose producer is idempotent.
func franzDrain(brokers []string, name string) drain {
	bodies := newBodies(rand.NewChaCha8([32]byte{5}))
	return drain{connections: 1, run: func(ctx context.Context, _ *pgxpool.Pool, m *meter) error {
		client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic(name), kgo.RequiredAcks(kgo.AllISRAcks()))
		if err != nil {
			return err
		}
		defer client.Close()
		return loops(ctx, m, writerLoops, writerBatch, func(n int) error {
			records := make([]*kgo.Record, min(writerBatch, int(m.rows)-n))
			for i := range records {
				records[i] = &kgo.Record{
					Value:   bodies[(n+i)%len(bodies)],
					Headers: []kgo.RecordHeader{{Key: kafkasink.MessageID, Value: []byte(uuid.NewString())}},
				}
			}
			return client.ProduceSync(ctx, records...).FirstErr()
		})
	}}
}
