package sharesource_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/sharesource"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// patience bounds every wait of these tests.
var patience = pgtest.Patience(90 * time.Second)

// settings of the share groups of these tests.
var settings = map[string]string{
	"share.isolation.level": "read_committed", "share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": "10000",
}

// rig is a topic, a share group, and a database with a row for each effect.
type rig struct {
	t        *testing.T
	brokers  []string
	topic    string
	pool     *pgxpool.Pool
	writer   *kgo.Client
	written  int
	acked    atomic.Int32 // records that were returned as done
	answered sync.Map     // by offset: whether the latest delivery was returned as done
	calls    atomic.Int32 // deliveries of records
}

func newRig(t *testing.T, brokers []string) *rig {
	t.Helper()
	r := &rig{t: t, brokers: brokers, topic: kafkatest.Topic(t, brokers, 1, nil), pool: pgtest.DB(t), writer: kafkatest.Client(t, brokers)}
	configure(t, r.writer, r.group(), settings)
	r.exec(`create table effect (value text not null, member text not null)`)
	return r
}

// configure sets a share group's settings.
func configure(t *testing.T, cl *kgo.Client, group string, settings map[string]string) {
	t.Helper()
	if err := devenv.SetGroup(t.Context(), cl, group, settings); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) group() string { return "share-" + r.topic }

func (r *rig) source() *sharesource.Source {
	return sharesource.New(sharesource.Config{Brokers: r.brokers, GroupID: r.group(), Topics: []string{r.topic}, SessionTimeout: 2 * time.Second, RebalanceTimeout: 10 * time.Second})
}

// write writes n records, "0", "1" and so on.
func (r *rig) write(n int) {
	r.t.Helper()
	values := make([]string, n)
	for i := range values {
		values[i] = fmt.Sprint(r.written + i)
	}
	kafkatest.Write(r.t, r.writer, r.topic, values...)
	r.written += n
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.pool.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) count(sql string, args ...any) (n int) {
	r.t.Helper()
	if err := r.pool.QueryRow(r.t.Context(), sql, args...).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

func (r *rig) until(what string, cond func() bool) {
	r.t.Helper()
	pgtest.Until(r.t, patience, what, cond)
}

// applied waits until each record that was written is applied or parked and the position is behind
// the last one, and checks that each had one effect.
func (r *rig) applied(parked int) {
	r.t.Helper()
	end := r.end()
	r.until("the position passes every record", func() bool {
		return r.count(`select count(*) from onlyonce.positions where topic = $1 and next_offset >= $2`, r.topic, end) == 1
	})
	if n := r.count(`select count(*) from onlyonce.parked where settled_at is null`); n != parked {
		r.t.Errorf("%d messages are parked, want %d", n, parked)
	}
	if all, distinct := r.count(`select count(*) from effect`), r.count(`select count(distinct value) from effect`); all != distinct || distinct != r.written-parked {
		r.t.Errorf("%d effects of %d messages, want one of each of %d", all, distinct, r.written-parked)
	}
}

// end returns the end of the log.
func (r *rig) end() int64 {
	r.t.Helper()
	ends, err := kafkatest.Admin(r.t, r.brokers).ListEndOffsets(r.t.Context(), r.topic)
	if err != nil {
		r.t.Fatal(err)
	}
	end, _ := ends.Lookup(r.topic, 0)
	return end.Offset
}

// counted counts deliveries, and what apply returns as done.
type counted struct {
	*sharesource.Source
	r *rig
}

func (c counted) Deliver(ctx context.Context, atOnce, most int, apply func(context.Context, source.Delivery[*consumer.Message]) source.Applied) error {
	return c.Source.Deliver(ctx, atOnce, most, func(ctx context.Context, d source.Delivery[*consumer.Message]) source.Applied {
		if len(d.Messages) > 0 {
			c.r.calls.Add(1)
		}
		out := apply(ctx, d)
		c.r.acked.Add(int32(len(out.Done))) //nolint:gosec // few
		for _, m := range d.Messages {
			c.r.answered.Store(m.Offset, slices.Contains(out.Done, m.Offset))
		}
		return out
	})
}

// member is a running consumer.
type member struct {
	*consumer.Consumer
	t    *testing.T
	stop func()
	logs func() string
}

// start starts a consumer whose handler calls f first, if it is not nil.
func (r *rig) start(name string, f func(ctx context.Context, m *consumer.Message) error, change ...func(*consumer.Config)) *member {
	r.t.Helper()
	logger, text := pgtest.Logged()
	cfg := consumer.Config{Scope: "share", PositionsOnly: true, Concurrency: 3, BatchSize: 10, Backoff: dedupe.Backoff{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond}, Logger: logger, DrainTimeout: time.Second}
	for _, c := range change {
		c(&cfg)
	}
	c, err := consumer.New(r.pool, counted{r.source(), r}, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if f != nil {
			if err := f(ctx, m); err != nil {
				return err
			}
		}
		tx.Queue(`insert into effect values ($1, $2)`, string(m.Value), name)
		return nil
	}, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	m := &member{Consumer: c, t: r.t, logs: text}
	m.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Errorf("member %s: %v", name, err)
		}
		if strings.Contains(text(), "DATA RACE") || r.t.Failed() {
			r.t.Logf("log of member %s:\n%s", name, text())
		}
	})
	r.t.Cleanup(m.stop)
	return m
}
