package onlyoncetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
)

// Result is the outcome of one [Apply], each list in the order of the messages.
type Result struct {
	// Applied are the messages whose handler ran and committed.
	Applied []Message
	// Skipped are the messages without effects: copies of an applied message.
	Skipped []Message
	// Parked are the messages that were set aside.
	Parked []Parked
	// Calls are the enqueued outbound calls, in that order.
	Calls []Call
}

// Parked is a message that was set aside.
type Parked struct {
	Message Message
	Reason  consumer.ParkReason
	// Err is the handler's last error, or the engine's.
	Err error
}

// group is the consumer group of all tests.
const group = "onlyoncetest"

// Apply applies messages with a handler, as a [consumer.Consumer] with cfg does, and returns when
// all of them are settled. The messages are in a topic in memory; there is no Kafka. A second Apply
// on the same pool appends to the same topic, so a message with an ID that was applied is skipped.
//
// The pool is from [Pool]. In cfg, Scope defaults to "test" and Key to the header message-id, which
// is [Message.ID]; Linger and Backoff have short defaults. The engine recognizes copies before the
// handler runs (ClaimFirst), so Apply shows a handler's effects. Use [Run] to prove that they
// happen once. Hooks are called; OnBegin, Middleware and FailurePolicy work as in production.
//
// The test fails if the configuration is wrong, if a partition halts, or if the messages are not
// settled within 30 seconds, for example because the handler hangs.
func Apply(t testing.TB, pool *pgxpool.Pool, handler consumer.Handler, cfg consumer.Config, msgs ...Message) Result {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l := logsFor(pool)
	places := l.add(msgs...)
	a := &applying{done: map[place]bool{}, parked: map[place]consumer.ParkedEvent{}, lines: &lines{}}
	cfg = a.watch(tuned(cfg))
	c, err := consumer.New(pool, l.source(group), handler, cfg)
	if err != nil {
		t.Fatalf("onlyoncetest: %v", err)
	}
	last := lastCall(ctx, t, pool)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	err = a.settled(ctx, pool, cfg, l.ends(), ended)
	cancel()
	select {
	case stopped := <-ended:
		err = errors.Join(err, stopped)
	case <-time.After(patience):
		err = errors.Join(err, fmt.Errorf("the consumer has not stopped within %v", patience))
	}
	if err != nil {
		t.Fatalf("onlyoncetest: %v\n%s", err, a.lines)
	}
	res := a.result(msgs, places)
	if res.Calls, err = callsAfter(context.Background(), pool, last); err != nil {
		t.Fatalf("onlyoncetest: %v", err)
	}
	return res
}

// patience bounds each wait. Nothing is judged by how long it took.
const patience = 30 * time.Second

func lastCall(ctx context.Context, t testing.TB, pool *pgxpool.Pool) (id int64) {
	t.Helper()
	if err := pool.QueryRow(ctx, `select coalesce(max(id + n - 1), 0) from onlyonce.batches`).Scan(&id); err != nil {
		t.Fatalf("onlyoncetest: %v (is the pool from onlyoncetest.Pool?)", err)
	}
	return id
}

// applying is one Apply.
type applying struct {
	lines *lines

	mu     sync.Mutex
	done   map[place]bool // committed
	parked map[place]consumer.ParkedEvent
	halted *consumer.HaltError
}

// attemptKey is the context key of an attempt's places.
type attemptKey struct{}

// watch adds what notes the outcome of each message to a configuration.
func (a *applying) watch(cfg consumer.Config) consumer.Config {
	cfg.ClaimFirst = true
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(a.lines, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	cfg.Middleware = append(
		slices.Clone(cfg.Middleware),
		func(ctx context.Context, _ consumer.Tx, msgs []*consumer.Message, next func(context.Context) error) error {
			if ran, ok := ctx.Value(attemptKey{}).(*[]place); ok {
				for _, m := range msgs {
					*ran = append(*ran, placeOf(m))
				}
			}
			return next(ctx)
		},
	)
	attempts := consumer.Hooks{
		AttemptStart: func(ctx context.Context, _ consumer.Batch) context.Context {
			return context.WithValue(ctx, attemptKey{}, &[]place{})
		},
		AttemptEnd: func(ctx context.Context, _ consumer.BatchResult, err error) {
			if ran, ok := ctx.Value(attemptKey{}).(*[]place); ok && err == nil {
				a.mu.Lock()
				defer a.mu.Unlock()
				for _, p := range *ran {
					a.done[p] = true
				}
			}
		},
	}
	events := consumer.Hooks{
		Parked: func(p consumer.ParkedEvent) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.parked[place{p.Topic, p.Partition, p.Offset}] = p
		},
		Resolved: func(r consumer.ResolvedEvent) {
			a.mu.Lock()
			defer a.mu.Unlock()
			delete(a.parked, place{r.Topic, r.Partition, r.Offset})
		},
		Halted: func(e *consumer.HaltError) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.halted = e
		},
	}
	cfg.Hooks = events.Join(cfg.Hooks).Join(attempts) // ours come first, but an attempt of ours is within the user's
	return cfg
}

// positionsSQL returns a row for each partition of a scope. $1 the scope.
const positionsSQL = `
select topic, partition, next_offset
  from onlyonce.positions
 where scope = $1 and retired_at is null`

// reached reports whether every partition of a scope has come to its end, and no message is going
// to be tried again.
func reached(ctx context.Context, pool *pgxpool.Pool, scope string, ends map[place]bool) (bool, error) {
	rows, err := pool.Query(ctx, positionsSQL, scope)
	if err != nil {
		return false, err
	}
	at := map[place]bool{}
	var p place
	if _, err := pgx.ForEachRow(
		rows,
		[]any{&p.topic, &p.partition, &p.offset},
		func() error { at[p] = true; return nil },
	); err != nil {
		return false, err
	}
	for end := range ends {
		if !at[end] && end.offset > 0 {
			return false, nil
		}
	}
	var owing bool
	err = pool.QueryRow(ctx, owingSQL, scope).Scan(&owing)
	return !owing, err
}

// settled waits until all messages are settled.
func (a *applying) settled(
	ctx context.Context,
	pool *pgxpool.Pool,
	cfg consumer.Config,
	ends map[place]bool,
	ended chan error,
) error {
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		ok, err := reached(ctx, pool, cfg.Scope, ends)
		if ok || err != nil {
			return err
		}
		a.mu.Lock()
		halted := a.halted
		a.mu.Unlock()
		if halted != nil {
			return halted
		}
		select {
		case <-tick.C:
		case err := <-ended:
			ended <- nil
			return fmt.Errorf("the consumer ended before all messages were settled: %w", err)
		case <-late.C:
			return fmt.Errorf("the messages are not settled after %v: a handler hangs, or fails each time", patience)
		}
	}
}

func (a *applying) result(msgs []Message, places []place) (res Result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, p := range places {
		if parked, there := a.parked[p]; there {
			res.Parked = append(res.Parked, Parked{msgs[i], parked.Reason, parked.Err})
		} else if a.done[p] {
			res.Applied = append(res.Applied, msgs[i])
		} else {
			res.Skipped = append(res.Skipped, msgs[i])
		}
	}
	return res
}

// lines keeps the last of what is logged.
type lines struct {
	mu   sync.Mutex
	kept []string
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.kept) == 20 {
		l.kept = l.kept[1:]
	}
	l.kept = append(l.kept, strings.TrimSpace(string(b)))
	return len(b), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.kept, "\n")
}
