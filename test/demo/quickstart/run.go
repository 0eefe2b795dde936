package quickstart

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/test/demo/remote"
	"github.com/onlyonce/onlyonce/test/demo/servers"
	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/screen"
	"github.com/onlyonce/onlyonce/test/workload"
)

// demo is one run: the stream, the servers, the workers, and what was done to them.
type demo struct {
	opts     options
	service  Service
	stream   *stream
	rest     []workload.Record // of the stream, not yet produced
	servers  *servers.Servers
	screen   *screen.Screen
	payments *remote.Payments
	fleet    *fleet.Fleet // nil before the workers
	random   *rand.Rand
	writer   *kafka.Writer
	run      string // names everything of this run: scope, group, topic, sink, effects
	opened   bool   // the workers have come to own the partitions
	tamper   func(ctx context.Context, pool *pgxpool.Pool, run string) error

	written atomic.Int64 // records acknowledged
	kills   int          // SIGKILLs
	inBatch int          // SIGKILLs that hit a batch in progress
	second  int          // records of the second production
	rewound int64        // how far the group's committed offsets were set back, and the cursors were not
}

// stopTimeout bounds how long workers may take to leave.
const stopTimeout = 30 * time.Second

// slice is how many records are written at a time.
const slice = 2000

// newDemo names a run. Its scope, topic, group, sink and rows are its own, so that one database
// serves any number of runs.
func newDemo(
	o options,
	service Service,
	s *stream,
	srv *servers.Servers,
	to *screen.Screen,
	tamper func(context.Context, *pgxpool.Pool, string) error,
) *demo {
	return &demo{
		opts:    o,
		service: service,
		stream:  s,
		rest:    s.records,
		servers: srv,
		screen:  to,
		run:     "quickstart-" + strings.ToLower(crand.Text()[:8]),
		random:  rand.New(rand.NewPCG(rand.Uint64(), 0)),
		tamper:  tamper,
	}
}

// Opened is true once there are workers at work.
func (d *demo) Opened() bool { return d.opened }

// Perform plays all acts. Whatever it returns, its workers are gone.
func (d *demo) Perform(ctx context.Context) (err error) {
	if err := d.open(ctx); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, d.fleet.Stop(stopTimeout), d.writer.Close(), d.payments.Close())
	}()
	for _, act := range []func(context.Context) error{
		d.firstKills,
		d.rebalance,
		d.otherKills,
		d.finishStream,
		d.resetOffsets,
		d.produceAgain,
	} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	return nil
}

// open makes what the run needs, and starts the workers.
func (d *demo) open(ctx context.Context) error {
	if err := servers.CreateTables(ctx, d.servers.Postgres.Pool, d.service.Schema); err != nil {
		return err
	}
	k := d.servers.Kafka
	if err := k.CreateTopic(ctx, d.run, d.opts.partitions); err != nil {
		return err
	}
	d.writer = k.Writer(d.run)
	var err error
	if d.payments, err = remote.Listen(); err != nil {
		return err
	}
	d.fleet, err = fleet.New(fleet.Config{Name: "quickstart", Verbose: d.screen.Verbose, Template: workerConfig{
		Postgres: d.servers.Postgres.URL, Kafka: k.Address, Session: k.SessionTimeout, Run: d.run,
		Pointer: d.opts.pointer, Payments: d.payments.URL,
		BatchSize: d.batchSize(), Connections: int32(min(d.opts.partitions, 8) + 2),
	}})
	if err != nil {
		return errors.Join(err, d.writer.Close(), d.payments.Close())
	}
	d.screen.Live(d.line)
	d.screen.Step("topic %s with %d partitions; payment endpoint at %s", d.run, d.opts.partitions, d.payments.URL)
	if err := d.startWorkers(ctx, "start"); err != nil {
		return errors.Join(err, d.fleet.Stop(stopTimeout), d.writer.Close(), d.payments.Close())
	}
	d.opened = true
	return nil
}

// batchSize makes batches so small that a short stream still has some for each kill to hit.
func (d *demo) batchSize() int {
	return min(max(len(d.stream.records)/(d.opts.kills+2)/d.opts.partitions/4, 5), 100)
}

// startWorkers starts the usual number of workers and waits until they own every partition.
func (d *demo) startWorkers(ctx context.Context, what string) error {
	mark := d.fleet.Mark()
	for range d.opts.workers {
		if _, err := d.fleet.Start(); err != nil {
			return err
		}
	}
	if err := d.waitOwned(ctx, mark); err != nil {
		return err
	}
	d.screen.Step("%s: %d worker processes share the partitions", what, d.opts.workers)
	return nil
}

// produce writes records and waits until they are acknowledged. What brokers refuse, or do not
// answer, is written again; should it have arrived all the same there is one more duplicate.
func (d *demo) produce(ctx context.Context, records []workload.Record) error {
	for len(records) > 0 {
		n := min(slice, len(records))
		messages := make([]kafka.Message, n)
		for i, r := range records[:n] {
			messages[i] = d.stream.kafka(r, d.opts.partitions)
		}
		err := d.wait(ctx, "records to be acknowledged", func(ctx context.Context) (bool, string, error) {
			err := d.writer.WriteMessages(ctx, messages...)
			var each kafka.WriteErrors
			if !errors.As(err, &each) {
				return err == nil, fmt.Sprint(len(messages)), err
			}
			var again []kafka.Message
			for i, err := range each {
				if err != nil {
					again = append(again, messages[i])
				}
			}
			err = each[slices.IndexFunc(each, func(err error) bool { return err != nil })]
			messages = again
			return false, fmt.Sprint(len(messages)), err
		})
		if err != nil {
			return err
		}
		d.written.Add(int64(n))
		records = records[n:]
	}
	return nil
}

// line is the live line of a run.
func (d *demo) line() string {
	handled, skipped := d.fleet.Progress()
	_, paid, _ := d.payments.Count()
	return fmt.Sprintf("produced %s  applied %s  skipped %s  paid %s  workers %d", screen.Count(d.written.Load()),
		screen.Count(int64(handled)), screen.Count(int64(skipped)), screen.Count(int64(paid)), d.fleet.Size())
}
