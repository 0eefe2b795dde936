package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	relayPinnedShort = 15 * time.Second
	relayPacedEvery  = 10 * time.Millisecond
	relayPacedRows   = 10 // a transaction: a thousand rows a second
	relayApp         = "onlyonce-bench-relay"
)

// produceSQL writes calls at a pace from within the server, so that this process does the relay's
// work only. No parameters, because a DO block takes none: formatted in are how many transactions,
// rows in each, and the seconds from one to the next.
const produceSQL = `
do $$
declare began timestamptz := clock_timestamp();
begin
  for i in 1..%[1]d loop
    perform onlyonce.enqueue_calls(
      checks => array_agg(0::smallint),
      keys => array_agg(gen_random_uuid()),
      order_keys => array_agg(null::uuid),
      sinks => array_agg('bench'::text),
      tenants => array_agg(''::text),
      scopes => array_agg('bench'::text),
      names => array_agg('event'::text),
      methods => array_agg('POST'::text),
      targets => array_agg('/event'::text),
      headers => array_agg(''::text),
      traces => array_agg(null::text),
      bodies => array_agg(decode(repeat(md5(i::text || g::text), 19), 'hex')),
      not_before => array_agg(null::timestamptz),
      origin_times => array_agg(null::timestamptz),
      redo => array_agg(false),
      capture => array_agg(false),
      sealed => array_agg(false)
    )
       from generate_series(1, %[2]d) g;
    commit;
    perform pg_sleep(greatest(0, i * %[3]f - extract(epoch from clock_timestamp() - began)));
  end loop;
end $$`

// relayBackendsSQL returns the process ids of the relay's connections.
const relayBackendsSQL = `select pid from pg_stat_activity where application_name = $1`

// relayPinned compares a relay while a snapshot is pinned elsewhere with the relay alone.
func relayPinned(_ context.Context, _ *server, o options) (wrapped, plain side, err error) {
	length := relayPinnedShort
	if o.long {
		length = pacedLong
	}
	return relayPacedSide(length, true), relayPacedSide(length, false), nil
}

// cpuRise is how much more CPU a row takes.
func cpuRise(wrapped, plain sample) (float64, bool) {
	return wrapped.cpu() / plain.cpu(), wrapped.used.seen && plain.used.seen
}

// relayPacedSide sends a thousand rows a second for the length, woken as often as rows are written.
// The CPU time is that of this process and of the relay's connections.
func relayPacedSide(length time.Duration, pin bool) side {
	return func(ctx context.Context, db *database, w *window) (got sample, err error) {
		if _, err := db.open(ctx, 2); err != nil {
			return sample{}, err
		}
		if pin {
			release, pinErr := db.pin(ctx)
			if pinErr != nil {
				return sample{}, pinErr
			}
			defer func() { err = errors.Join(err, release()) }()
		}
		cfg, err := pgxpool.ParseConfig(db.srv.address(db.name))
		if err != nil {
			return sample{}, err
		}
		cfg.MaxConns, cfg.ConnConfig.RuntimeParams["application_name"] = relayConnections, relayApp
		pool, err := pgxpool.NewWithConfig(ctx, cfg)
		if err != nil {
			return sample{}, err
		}
		defer pool.Close()
		var count atomic.Int64
		r, err := startRelay(ctx, pool, remote{}, relayConcurrency, func() { count.Add(1) })
		if err != nil {
			return sample{}, err
		}
		defer func() { err = errors.Join(err, r.stop()) }()
		producing, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			n := int((length+time.Minute)/relayPacedEvery) + 1
			if _, err := db.pool.Exec(producing, fmt.Sprintf(produceSQL, n, relayPacedRows, relayPacedEvery.Seconds())); err != nil &&
				producing.Err() == nil {
				select {
				case r.failed <- err:
				default:
				}
			}
		}()
		defer func() { stop(); <-ended }()
		go func() {
			tick := time.NewTicker(relayPacedEvery)
			defer tick.Stop()
			for producing.Err() == nil {
				r.relay.Wake()
				<-tick.C
			}
		}()
		if err := first(ctx, counted(producing, &count), r.failed); err != nil {
			return sample{}, err
		}
		if _, err := db.relayCPU(ctx); err != nil { // connects what is needed for it
			return sample{}, err
		}
		var u0, u1 usage
		if err := pause(ctx, settle, r.failed); err != nil {
			return sample{}, err
		}
		profiled, err := w.startProfile()
		if err != nil {
			return sample{}, err
		}
		if u0, err = db.relayCPU(ctx); err != nil {
			return sample{}, err
		}
		n0, t0 := count.Load(), time.Now()
		if err := pause(ctx, length, r.failed); err != nil {
			return sample{}, err
		}
		n1, t1 := count.Load(), time.Now()
		if u1, err = db.relayCPU(ctx); err != nil {
			return sample{}, err
		}
		if err := profiled(); err != nil {
			return sample{}, err
		}
		got = sample{messages: n1 - n0, elapsed: t1.Sub(t0), used: u1.minus(u0)}
		if due := int64(length/relayPacedEvery) * relayPacedRows; got.messages < due*9/10 {
			return got, fmt.Errorf("%d of %d rows in %v: this machine is too busy", got.messages, due, length)
		}
		return got, nil
	}
}

// relayCPU is the CPU time of this process and of the relay's connections.
func (d *database) relayCPU(ctx context.Context) (u usage, err error) {
	rows, err := d.pool.Query(ctx, relayBackendsSQL, relayApp)
	if err != nil {
		return u, err
	}
	defer rows.Close()
	u.seen = d.srv.postmaster != 0
	for rows.Next() {
		var pid int
		if err := rows.Scan(&pid); err != nil {
			return u, err
		}
		cpu, ok := backendCPU(pid)
		u.server += cpu
		u.seen = u.seen && ok
	}
	var own bool
	u.client, own = ownCPU()
	u.seen = u.seen && own
	return u, rows.Err()
}

// counted is closed when something has been counted, or when ctx has ended.
func counted(ctx context.Context, count *atomic.Int64) <-chan struct{} {
	begun := make(chan struct{})
	go func() {
		defer close(begun)
		for count.Load() == 0 && until(ctx, time.Now().Add(time.Millisecond)) == nil {
		}
	}()
	return begun
}

// pause waits, unless something fails.
func pause(ctx context.Context, d time.Duration, failed <-chan error) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case err := <-failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
