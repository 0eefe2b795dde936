package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/franzsource"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
)

// peakEnv makes this program a child of itself; see childMain.
const peakEnv = "ONLYONCE_BENCH_CHILD"

// child is the work of a child process: it runs a command and prints the peak of its memory, or it
// reads a topic to its end.
type child struct {
	Run []string

	Adapter  string // kafkasource, franzsource, or franz-go: the client alone
	Brokers  []string
	Topic    string
	Group    string
	Messages int64
	Database string
}

const (
	peakPartitions = 8
	peakBatch      = 900_000 // bytes of a producer's batch
	// javaHeap is what kafka-console-consumer.sh gives it.
	javaHeap = "-Xmx512m"
)

// peaks are the two topics of P23: large messages that hardly compress, and small ones that
// compress well.
type peaks struct {
	messages, bytes int
	codec           kgo.CompressionCodec
}

var (
	peaksEqual = peaks{120_000, 5_000, kgo.ZstdCompression()}
	peaksSmall = peaks{500_000, 100, kgo.NoCompression()}
)

func (p peaks) open(ctx context.Context, srv *server, _ options) (wrapped, plain side, err error) {
	brokers, err := srv.brokers(ctx)
	if err != nil {
		return nil, nil, err
	}
	if len(srv.broker.Nodes) == 0 {
		return nil, nil, errors.New("P23 compares with a Java consumer, which needs the broker's jars: let this program start Kafka itself")
	}
	name := fmt.Sprintf("onlyonce-bench-peak-%d-%d", os.Getpid(), p.bytes)
	if err := p.fill(ctx, brokers, name); err != nil {
		return nil, nil, err
	}
	work := child{Brokers: brokers, Topic: name, Messages: int64(p.messages)}
	groups := 0
	group := func() string { groups++; return fmt.Sprintf("%s-%d", name, groups) }
	wrapped = func(ctx context.Context, db *database, _ *window) (got sample, err error) {
		for _, adapter := range []string{"kafkasource", "franzsource"} {
			c := work
			c.Adapter = adapter
			c.Group = group()
			c.Database = srv.address(db.name)
			one, err := c.peak(ctx)
			if err != nil {
				return got, err
			}
			srv.log(fmt.Sprintf("  %d messages of %d bytes with %s: %.0f MiB", p.messages, p.bytes, adapter, one))
			got.peak = max(got.peak, one)
		}
		got.messages, got.elapsed = work.Messages, time.Second
		return got, nil
	}
	plain = func(ctx context.Context, _ *database, _ *window) (got sample, err error) {
		c := work
		c.Adapter, c.Group = "franz-go", group()
		if got.peak, err = c.peak(ctx); err != nil {
			return got, err
		}
		got.messages, got.elapsed = work.Messages, time.Second
		got.javaPeak, err = work.javaPeak(ctx, srv, group())
		return got, err
	}
	return wrapped, plain, nil
}

// fill writes the topic.
func (p peaks) fill(ctx context.Context, brokers []string, name string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic(name), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(p.codec), kgo.ProducerBatchMaxBytes(peakBatch), kgo.ProducerLinger(100*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(ctx, peakPartitions, 1, nil, name); err != nil {
		return err
	}
	value := bytes.Repeat([]byte{'x'}, p.bytes)
	var failed atomic.Pointer[error]
	for i := range p.messages {
		client.Produce(ctx, &kgo.Record{Partition: int32(i % peakPartitions), Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.CompareAndSwap(nil, &err)
			}
		})
	}
	err = client.Flush(ctx)
	if f := failed.Load(); f != nil {
		err = errors.Join(err, *f)
	}
	return err
}

// peak runs the child and returns the peak of its resident memory, in MiB.
func (c child) peak(ctx context.Context) (float64, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	spec, err := json.Marshal(c)
	if err != nil {
		return 0, err
	}
	return peakOf(ctx, []string{"env", peakEnv + "=" + string(spec), self})
}

// peakOf runs the command from a small process of its own. Linux counts towards a process the peak
// of the one that it was forked from, and this one is large.
func peakOf(ctx context.Context, argv []string) (float64, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	spec, err := json.Marshal(child{Run: argv})
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), peakEnv+"="+string(spec))
	var out, fault bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &fault
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("%w: %s", err, strings.TrimSpace(fault.String()))
	}
	var mib float64
	_, err = fmt.Sscan(out.String(), &mib)
	return mib, err
}

//go:embed peakjava/Drain.java
var drainJava []byte

// javaPeak compiles the Java consumer, and runs it with the heap that kafka-console-consumer.sh
// has.
func (c child) javaPeak(ctx context.Context, srv *server, group string) (float64, error) {
	java, classes := srv.broker.Nodes[0].Java()
	dir, err := os.MkdirTemp("", "onlyonce-bench-java")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "Drain.java")
	if err := os.WriteFile(file, drainJava, 0o600); err != nil {
		return 0, err
	}
	if out, err := exec.CommandContext(
		ctx,
		filepath.Join(filepath.Dir(java), "javac"),
		"-cp",
		classes,
		"-d",
		dir,
		file,
	).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("javac: %w: %s", err, out)
	}
	return peakOf(ctx, []string{
		java,
		javaHeap,
		"-cp",
		dir + string(filepath.ListSeparator) + classes,
		"Drain",
		c.Brokers[0],
		c.Topic,
		group,
		fmt.Sprint(c.Messages),
	})
}

// childMain is main of a child.
func childMain(ctx context.Context, spec string, stdout, stderr io.Writer) int {
	_ = os.Unsetenv(peakEnv)
	var c child
	err := json.Unmarshal([]byte(spec), &c)
	switch {
	case err != nil:
	case len(c.Run) > 0:
		err = c.measure(ctx, stdout, stderr)
	case c.Adapter == "franz-go":
		err = c.drain(ctx)
	default:
		err = c.consume(ctx)
	}
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return 1
	}
	return 0
}

// measure runs a command, and prints the peak of its resident memory.
func (c child) measure(ctx context.Context, stdout, stderr io.Writer) error {
	cmd := exec.CommandContext(ctx, c.Run[0], c.Run[1:]...)
	cmd.Stderr = stderr
	if err := cmd.Run(); err != nil {
		return err
	}
	mib, ok := maxRSS(cmd.ProcessState)
	if !ok {
		return errors.New("this system does not tell how much memory a process had")
	}
	_, err := fmt.Fprintln(stdout, mib)
	return err
}

// drain is the loop with which a user of franz-go begins.
func (c child) drain(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(c.Brokers...), kgo.ConsumerGroup(c.Group), kgo.ConsumeTopics(c.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer client.Close()
	for left := c.Messages; left > 0; {
		got := client.PollFetches(ctx)
		if err := got.Err(); err != nil {
			return err
		}
		left -= int64(got.NumRecords())
	}
	return nil
}

// consume runs a consumer with its defaults, and a handler that writes a row for each message.
func (c child) consume(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	cfg, err := pgxpool.ParseConfig(c.Database)
	if err != nil {
		return err
	}
	cfg.MaxConns = 2*peakPartitions + 4
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	var source consumer.Source = kafkasource.New(kafkasource.Config{Brokers: c.Brokers, GroupID: c.Group, Topics: []string{c.Topic}})
	if c.Adapter == "franzsource" {
		source = franzsource.New(franzsource.Config{Brokers: c.Brokers, GroupID: c.Group, Topics: []string{c.Topic}})
	}
	var handled atomic.Int64
	handler := func(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
		tx.Queue(effectSQL, m.Offset, m.Value[:1])
		return nil
	}
	consuming, err := consumer.New(pool, source, consumer.HandlerFunc(handler), consumer.Config{
		Scope:         "bench-" + c.Adapter,
		PositionsOnly: true,
		Hooks: consumer.Hooks{AttemptEnd: func(_ context.Context, d consumer.BatchResult, err error) {
			if err == nil && handled.Add(int64(d.Handled)) >= c.Messages {
				stop()
			}
		}},
	})
	if err != nil {
		return err
	}
	if err := consuming.Run(ctx); err != nil {
		return err
	}
	if n := handled.Load(); n != c.Messages {
		return fmt.Errorf("%d messages were handled, of %d", n, c.Messages)
	}
	return nil
}
