package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/outbox"
)

// drain is a way to send rows that are stored in the database, and to record that they were sent.
type drain struct {
	connections int
	// fill writes n rows, in transactions of a thousand.
	fill func(ctx context.Context, pool *pgxpool.Pool, rows int) error
	// run sends them all, and returns after every result is written.
	run func(ctx context.Context, pool *pgxpool.Pool, m *meter) error
	// check reads the tables afterwards. Nil: they show nothing.
	check func(ctx context.Context, pool *pgxpool.Pool, rows int) error
}

// meter counts the rows of a drain. Its clock runs from the start, because finding the first row is
// a part of it, to the last row.
type meter struct {
	rows  int64
	count atomic.Int64
	end   time.Time // written at the last row
	all   chan struct{}
}

func newMeter(rows int) *meter { return &meter{rows: int64(rows), all: make(chan struct{})} }

// done is called for rows that are settled, from any goroutine.
func (m *meter) done(n int) {
	if n > 0 && m.count.Add(int64(n)) == m.rows {
		m.end = time.Now()
		close(m.all)
	}
}

// wait returns when all rows are done, or with the error that came first.
func (m *meter) wait(ctx context.Context, failed <-chan error) error {
	t := time.NewTimer(drainLimit)
	defer t.Stop()
	select {
	case <-m.all:
		return nil
	case err := <-failed:
		if err == nil {
			err = errors.New("it has ended before its rows")
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return fmt.Errorf("%d of %d rows were done in %v", m.count.Load(), m.rows, drainLimit)
	}
}

// drainLimit is how long a drain may take.
const drainLimit = time.Minute

// side drains a fixed number of rows, and not for a window.
func (d drain) side(rows int) side {
	return func(ctx context.Context, db *database, w *window) (sample, error) {
		pool, err := db.open(ctx, d.connections)
		if err != nil {
			return sample{}, err
		}
		if d.fill != nil {
			if err := d.fill(ctx, pool, rows); err != nil {
				return sample{}, fmt.Errorf("filling: %w", err)
			}
			if _, err := pool.Exec(ctx, "analyze"); err != nil {
				return sample{}, err
			}
			runtime.GC()
		}
		stop, err := w.startProfile()
		if err != nil {
			return sample{}, err
		}
		before, err := db.srv.usage(ctx)
		if err != nil {
			return sample{}, err
		}
		m, begun := newMeter(rows), time.Now()
		if err := d.run(ctx, pool, m); err != nil {
			return sample{}, err
		}
		after, err := db.srv.usage(ctx)
		if err != nil {
			return sample{}, err
		}
		if err := stop(); err != nil {
			return sample{}, err
		}
		if got := m.count.Load(); got != m.rows {
			return sample{}, fmt.Errorf("%d rows were done, there were %d", got, m.rows)
		}
		s := sample{messages: m.rows, elapsed: m.end.Sub(begun), used: after.minus(before)}
		if d.check != nil {
			err = d.check(ctx, pool, rows)
		}
		return s, err
	}
}

// fillBatch is how many rows a filling transaction writes, and how many the drains by hand take at
// a time.
const fillBatch = 1000

// inBatches hands out bodies, a thousand at a time.
func inBatches(rows int, write func(bodies [][]byte) error) error {
	all := newBodies(rand.NewChaCha8([32]byte{5}))
	batch := make([][]byte, 0, fillBatch)
	for i := range rows {
		if batch = append(batch, all[i%len(all)]); len(batch) == fillBatch || i == rows-1 {
			if err := write(batch); err != nil {
				return err
			}
			batch = batch[:0]
		}
	}
	return nil
}

// enqueueSQL writes calls as consumers do: the fence excludes that they are stored already, so no
// check reads for them (checks is 0). $1 target, $2 bodies. Out: one row of void.
const enqueueSQL = `
select onlyonce.enqueue_calls(
  checks => array_agg(0::smallint),
  keys => array_agg(gen_random_uuid()),
  order_keys => array_agg(null::uuid),
  sinks => array_agg('bench'::text),
  tenants => array_agg(''::text),
  scopes => array_agg('bench'::text),
  names => array_agg('event'::text),
  methods => array_agg('POST'::text),
  targets => array_agg($1::text),
  headers => array_agg(''::text),
  traces => array_agg(null::text),
  bodies => array_agg(b),
  not_before => array_agg(null::timestamptz),
  origin_times => array_agg(null::timestamptz),
  redo => array_agg(false),
  capture => array_agg(false),
  sealed => array_agg(false)
)
  from unnest($2::bytea[]) b`

// pendingSQL returns one row: how many calls are there, and how many of them are not delivered.
const pendingSQL = `select count(*), count(*) filter (where state <> 'delivered') from onlyonce.calls`

const (
	sinkName = "bench"
	// relayConnections are more than a relay needs.
	relayConnections = 20
	// relayConcurrency is the most that a relay takes, for sinks that are done at once or gather
	// calls.
	relayConcurrency = 1000
)

// relayDrain sends rows by the relay, each without an ordering key.
func relayDrain(sink outbox.Sink, concurrency int, target string) drain {
	return drain{
		connections: relayConnections,
		fill: func(ctx context.Context, pool *pgxpool.Pool, rows int) error {
			return inBatches(rows, func(bodies [][]byte) error {
				_, err := pool.Exec(ctx, enqueueSQL, target, bodies)
				return err
			})
		},
		run: func(ctx context.Context, pool *pgxpool.Pool, m *meter) error {
			r, err := startRelay(ctx, pool, sink, concurrency, func() { m.done(1) })
			if err != nil {
				return err
			}
			return errors.Join(m.wait(ctx, r.failed), r.stop())
		},
		check: func(ctx context.Context, pool *pgxpool.Pool, rows int) error {
			var all, open int
			if err := pool.QueryRow(ctx, pendingSQL).Scan(&all, &open); err != nil {
				return err
			}
			if all != rows || open != 0 {
				return fmt.Errorf("%d calls in the log, of which %d are not delivered; there were %d", all, open, rows)
			}
			return nil
		},
	}
}

// running is a relay at work.
type running struct {
	relay  *outbox.Relay
	failed chan error
	cancel context.CancelFunc
	ended  chan error
}

// startRelay runs a relay with one sink. delivered is called for each call that is settled;
// anything but a delivery is an error.
func startRelay(ctx context.Context, pool *pgxpool.Pool, sink outbox.Sink, concurrency int, delivered func()) (*running, error) {
	r := &running{failed: make(chan error, 1), ended: make(chan error, 1)}
	fail := func(err error) {
		select {
		case r.failed <- err:
		default:
		}
	}
	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{
		Sinks: []outbox.Sink{sink}, Concurrency: concurrency, PollInterval: 100 * time.Millisecond,
		Hooks: outbox.Hooks{
			Settled: func(s outbox.SettledEvent) {
				if s.State != "delivered" {
					fail(fmt.Errorf("call %d: %s: %s (%w)", s.Row, s.State, s.Reason, s.Err))
					return
				}
				delivered()
			},
			TransactionFailed: func(f outbox.TransactionFailedEvent) { fail(f.Err) },
		},
	})
	if err != nil {
		return nil, err
	}
	r.relay = relay
	ctx, r.cancel = context.WithCancel(ctx)
	go func() {
		err := relay.Run(ctx)
		if err != nil {
			fail(err)
		}
		r.ended <- err
	}()
	return r, nil
}

// stop ends the relay in order.
func (r *running) stop() error {
	r.cancel()
	return <-r.ended
}

// remote is a sink that only reports each call.
type remote struct{ arrived func() }

func (remote) Name() string { return sinkName }
func (remote) Limits() outbox.Limits {
	return outbox.Limits{KeyWindow: outbox.Forever, Timeout: 30 * time.Second}
}

// SendBatch is what a sink has that makes many attempts at once.
func (r remote) SendBatch(ctx context.Context, calls []*outbox.Attempt, ended func(int, outbox.Result)) {
	for i, a := range calls {
		ended(i, r.Send(ctx, a))
	}
}

func (r remote) Send(context.Context, *outbox.Attempt) outbox.Result {
	if r.arrived != nil {
		r.arrived()
	}
	return outbox.Result{Outcome: outbox.Delivered}
}

// drained compares the relay's drain to a sink that does nothing with another drain. rate is how
// many rows a second the other one can take.
func drained(other drain, rate int) func(context.Context, *server, options) (side, side, error) {
	return func(_ context.Context, _ *server, o options) (wrapped, plain side, err error) {
		rows := func(perSecond int) int { return max(int(float64(perSecond)*o.window.Seconds()), 10*fillBatch) }
		return relayDrain(remote{}, relayConcurrency, "/event").side(rows(relayRate)), other.side(rows(rate)), nil
	}
}

// relayRate is how many rows a relay is given to drain for each second of a measurement.
const relayRate = 100_000
