package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
)

// heldWays are the queues in the order in which they are played.
var heldWays = []heldWay{
	{
		name: "consumer", label: "onlyonce, consumer with positions and ids", byItself: true, open: heldConsumer,
		how: "4 partitions, random ids, batches of up to 100, an INSERT for each event; the log is in the process",
	},
	{
		name: "outbox", label: "onlyonce, outbox", open: heldOutbox,
		how: "calls that a transaction enqueues every 10 ms, a relay, a sink that does nothing",
	},
	{
		name: "pgq", label: "PgQ", open: heldPgQ,
		how: "Debian's postgresql-15-pgq3 and pgqd with their defaults, one consumer",
	},
	{
		name: "skip-locked", label: "a SKIP LOCKED DELETE queue", open: heldSkipLocked,
		how: "`DELETE ... ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED`, 2 workers, 10 ms of pause when it is empty",
	},
	{
		name: "river", label: "River", open: heldRiver,
		how: "jobs that do nothing, inserted every 10 ms by InsertManyFast, 100 workers, defaults",
	},
}

const (
	heldBatch = 100
	heldPause = 10 * time.Millisecond // of a consumer that has found nothing
)

func heldConsumer(ctx context.Context, db *database, rate int, length time.Duration) (*holding, error) {
	h := newHolding()
	every := pacedPartitions * time.Second / time.Duration(rate)
	t := newTape(pacedPartitions, int(length/every)+2*fetchLimit, randomID)
	c, err := consumer.New(db.pool, taped{&memlog.Source{Log: t.log, GroupID: group}, t.paced(every)}, consumer.HandlerFunc(handlerQueued),
		consumer.Config{Scope: "bench", BatchSize: heldBatch, Key: consumer.HeaderKey(idHeader), Hooks: consumer.Hooks{
			Batch:  func(b consumer.BatchResult) { h.done.Add(int64(b.Handled)) },
			Halted: func(e *consumer.HaltError) { h.fail(e) },
		}})
	if err != nil {
		return nil, err
	}
	h.run(ctx, c.Run)
	return h, nil
}

// run runs f until stop.
func (h *holding) run(ctx context.Context, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := f(ctx); err != nil && ctx.Err() == nil {
			h.fail(err)
		}
	}()
	h.stop = func() error {
		cancel()
		<-ended
		return nil
	}
}

func heldOutbox(ctx context.Context, db *database, _ int, _ time.Duration) (*holding, error) {
	h := newHolding()
	relay, err := startRelay(ctx, db.pool, remote{}, relayConcurrency, func() { h.done.Add(1) })
	if err != nil {
		return nil, err
	}
	h.failed = relay.failed
	h.stop = relay.stop
	h.produce = func(ctx context.Context, bodies [][]byte) error {
		_, err := db.pool.Exec(ctx, enqueueSQL, "/event", bodies)
		relay.relay.Wake()
		return err
	}
	return h, nil
}

// heldTakeSQL takes the next rows, as usual. $1 how many.
const heldTakeSQL = `
delete from queue
 where ctid = any (array(select ctid from queue order by id limit $1 for update skip locked))
returning id, body`

func heldSkipLocked(ctx context.Context, db *database, _ int, _ time.Duration) (*holding, error) {
	h := newHolding()
	if _, err := db.pool.Exec(ctx, queueSQL); err != nil {
		return nil, err
	}
	h.produce = func(ctx context.Context, bodies [][]byte) error {
		_, err := db.pool.Exec(ctx, `insert into queue (body) select unnest($1::bytea[])`, bodies)
		return err
	}
	h.run(ctx, func(ctx context.Context) error {
		var workers sync.WaitGroup
		for range queueConnections {
			workers.Go(func() {
				if err := h.takeLocked(ctx, db.pool); err != nil && ctx.Err() == nil {
					h.fail(err)
				}
			})
		}
		workers.Wait()
		return nil
	})
	return h, nil
}

func (h *holding) takeLocked(ctx context.Context, pool *pgxpool.Pool) error {
	for ctx.Err() == nil {
		rows, err := pool.Query(ctx, heldTakeSQL, heldBatch)
		if err != nil {
			return err
		}
		n := 0
		for rows.Next() {
			n++
		}
		if err := rows.Err(); err != nil {
			return err
		}
		h.done.Add(int64(n))
		if n == 0 {
			_ = until(ctx, time.Now().Add(heldPause)) // the loop's condition
		}
	}
	return nil
}

func heldRiver(ctx context.Context, db *database, _ int, _ time.Duration) (*holding, error) {
	h := newHolding()
	if err := migrateRiver(ctx, db.pool); err != nil {
		return nil, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(context.Context, *river.Job[callArgs]) error {
		h.done.Add(1)
		return nil
	}))
	client, err := river.NewClient(riverpgxv5.New(db.pool), &river.Config{
		Workers: workers,
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}},
		Logger:  slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	if err := client.Start(ctx); err != nil {
		return nil, err
	}
	h.stop = func() error { return client.Stop(context.WithoutCancel(ctx)) }
	h.produce = func(ctx context.Context, bodies [][]byte) error {
		jobs := make([]river.InsertManyParams, len(bodies))
		for i, b := range bodies {
			jobs[i].Args = callArgs{Target: "/event", Body: b}
		}
		_, err := client.InsertManyFast(ctx, jobs)
		return err
	}
	return h, nil
}

// The queue and the consumer of PgQ.
const (
	pgqSetUpSQL  = `select pgq.create_queue('events'), pgq.register_consumer('events', 'bench')`
	pgqInsertSQL = `select count(pgq.insert_event('events', 'event', b)) from unnest($1::text[]) b`
	pgqNextSQL   = `select pgq.next_batch('events', 'bench')`
	pgqEventsSQL = `select count(ev_data) from pgq.get_batch_events($1)`
	pgqFinishSQL = `select pgq.finish_batch($1)`
)

// errNoPgQ says what is missing.
var errNoPgQ = errors.New("PgQ is not on this server (Debian: apt-get install postgresql-15-pgq3 pgqd)")

func heldPgQ(ctx context.Context, db *database, _ int, _ time.Duration) (*holding, error) {
	h := newHolding()
	var there bool
	err := db.pool.QueryRow(ctx, `select exists (select from pg_available_extensions where name = 'pgq')`).Scan(&there)
	if err != nil {
		return nil, err
	}
	daemon, err := exec.LookPath("pgqd")
	if err != nil || !there {
		return nil, errNoPgQ
	}
	if _, err := db.pool.Exec(ctx, "create extension pgq"); err != nil {
		return nil, err
	}
	if _, err := db.pool.Exec(ctx, pgqSetUpSQL); err != nil {
		return nil, err
	}
	stopTicker, err := startPgqd(db, daemon)
	if err != nil {
		return nil, err
	}
	h.produce = func(ctx context.Context, bodies [][]byte) error {
		texts := make([]string, len(bodies))
		for i, b := range bodies {
			texts[i] = hex.EncodeToString(b[:len(b)/2]) // as many bytes as the others write
		}
		_, err := db.pool.Exec(ctx, pgqInsertSQL, texts)
		return err
	}
	h.run(ctx, func(ctx context.Context) error { return h.takePgQ(ctx, db.pool) })
	stopReading := h.stop
	h.stop = func() error { return errors.Join(stopReading(), stopTicker()) }
	return h, nil
}

// startPgqd runs PgQ's ticker, with its defaults, for one database.
func startPgqd(db *database, daemon string) (stop func() error, err error) {
	dir, err := os.MkdirTemp("", "onlyonce-bench-pgqd")
	if err != nil {
		return nil, err
	}
	cfg, err := pgx.ParseConfig(db.srv.address(db.name))
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("[pgqd]\nbase_connstr = host=%s port=%d user=%s password='%s'\ninitial_database = %s\ndatabase_list = %s\n",
		cfg.Host, cfg.Port, cfg.User, cfg.Password, db.name, db.name)
	file := filepath.Join(dir, "pgqd.ini")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	cmd := exec.Command(daemon, "-q", file) //nolint:gosec // Debian's
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return func() error {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		return os.RemoveAll(dir)
	}, nil
}

func (h *holding) takePgQ(ctx context.Context, pool *pgxpool.Pool) error {
	for ctx.Err() == nil {
		var batch *int64
		if err := pool.QueryRow(ctx, pgqNextSQL).Scan(&batch); err != nil {
			return err
		}
		if batch == nil {
			_ = until(ctx, time.Now().Add(heldPause)) // the loop's condition
			continue
		}
		var n int64
		if err := pool.QueryRow(ctx, pgqEventsSQL, *batch).Scan(&n); err != nil {
			return err
		}
		if _, err := pool.Exec(ctx, pgqFinishSQL, *batch); err != nil {
			return err
		}
		h.done.Add(n)
	}
	return nil
}
