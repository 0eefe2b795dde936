package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
)

// watched runs a consumer whose Status and pauses a test uses.
func (r *rig) watched(h consumer.HandlerFunc, cfg consumer.Config) (c *consumer.Consumer, stop func()) {
	r.t.Helper()
	return r.watchedOn(r.src, h, cfg)
}

func (r *rig) watchedOn(src consumer.Source, h consumer.HandlerFunc, cfg consumer.Config) (c *consumer.Consumer, stop func()) {
	r.t.Helper()
	cfg.Hooks = r.hooks(cfg.Hooks)
	c, err := consumer.New(r.pool, src, h, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return c, r.run(c)
}

// status waits until a partition's status meets the condition.
func (r *rig) status(
	c *consumer.Consumer,
	partition int,
	what string,
	cond func(consumer.PartitionStatus) bool,
) (got consumer.PartitionStatus) {
	r.t.Helper()
	until(r.t, what, func() bool {
		all, err := c.Status(context.Background())
		if err != nil {
			r.t.Fatal(err)
		}
		for _, s := range all {
			if s.Partition == int32(partition) {
				got = s
				return cond(s)
			}
		}
		return false
	})
	return got
}

func TestStatusTellsHowPartitionsStand(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	values := r.numbered(0, 10)
	r.log.Append(1, "no key")
	r.log.AppendMessage(1, &consumer.Message{Key: []byte("k"), Value: []byte("sick"), Headers: []consumer.Header{id("sick")}})
	r.log.AppendMessage(1, &consumer.Message{Key: []byte("k"), Value: []byte("behind"), Headers: []consumer.Header{id("behind")}})
	release := make(chan struct{})
	var once sync.Once
	free := func() { once.Do(func() { close(release) }) }
	defer free()
	cfg := testConfig()
	cfg.BatchSize = 3
	cfg.OnFailure = consumer.ParkOrderingKey
	cfg.MaxAttempts = 5
	cfg.Backoff.Min = time.Hour
	cfg.Backoff.Max = time.Hour
	c, stop := r.watched(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Partition == 0 && m.Offset == 3 {
			<-release
		}
		if string(m.Value) == "sick" {
			return errBoom
		}
		return queued(ctx, tx, m)
	}, cfg)
	s := r.status(c, 0, "a batch in hand", func(s consumer.PartitionStatus) bool {
		return s.Position == 3 && s.InFlight == 3 && s.HighWatermark == 10
	})
	good := s.Topic == "orders" &&
		s.Lag == 7 &&
		s.Epoch == 1 &&
		s.Halted == nil &&
		!s.Paused
	if !good {
		t.Errorf("%+v", s)
	}
	// What is parked is asked of the database, which may know of the commit before its owner does.
	r.status(c, 1, "what is parked", func(s consumer.PartitionStatus) bool {
		return s.Waiting == 1 && s.ToRetry == 1 && s.Blocked == 1 && s.Position == 3 && s.Lag == 0
	})
	free()
	r.status(c, 0, "the end", func(s consumer.PartitionStatus) bool { return s.Position == 10 && s.Lag == 0 && s.InFlight == 0 })
	r.log.Skip(0, 2) // lag counts what is there, though there is nothing to handle
	r.status(c, 0, "two offsets more", func(s consumer.PartitionStatus) bool { return s.HighWatermark == 12 })
	stop()
	if all, err := c.Status(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%v, %v of a consumer that owns nothing", all, err)
	}
	r.once(values...)
}

// F8: above an open transaction nothing is read. Status shows that the partition waits there, and
// since when.
func TestStatusTellsOfAnOpenTransaction(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	before := time.Now()
	values := r.numbered(0, 5)
	c, stop := r.watched(queued, testConfig())
	s := r.status(c, 0, "the end", func(s consumer.PartitionStatus) bool { return s.Position == 5 && s.HighWatermark == 5 })
	if s.LastStable != 5 || !s.WaitingSince.IsZero() || s.LastBatch.Before(before) {
		t.Errorf("at the log's end: %+v", s)
	}
	end := r.log.Begin(0)
	for _, v := range []string{"inside", "behind"} {
		r.log.Append(0, v, id(v))
		values = append(values, v)
	}
	s = r.status(c, 0, "a wait", func(s consumer.PartitionStatus) bool { return !s.WaitingSince.IsZero() && s.HighWatermark == 7 })
	good := s.Position == 5 &&
		s.LastStable == 5 &&
		s.Lag == 2 &&
		!s.WaitingSince.Before(s.LastBatch) &&
		s.Halted == nil
	if !good {
		t.Errorf("behind an open transaction: %+v", s)
	}
	since := s.WaitingSince
	looks := 0
	r.status(c, 0, "some looks", func(s consumer.PartitionStatus) bool {
		looks++
		if !s.WaitingSince.Equal(since) {
			t.Errorf("since %v, and then since %v", since, s.WaitingSince)
		}
		return looks > 20
	})
	end()
	s = r.status(c, 0, "the end", func(s consumer.PartitionStatus) bool { return s.Position == 7 && s.LastStable == 7 })
	if !s.WaitingSince.IsZero() || s.Lag != 0 || s.LastBatch.Before(since) {
		t.Errorf("at the end: %+v", s)
	}
	stop()
	r.once(values...)
}

// Status shows a halt from its first to its last moment, with its time of retention, and not only
// between two checks.
func TestStatusTellsOfHalts(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Retention = time.Hour
	values := r.numbered(0, 10)
	var well atomic.Bool
	cfg := testConfig()
	cfg.OnFailure = consumer.BlockPartition
	c, stop := r.watched(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 4 && !well.Load() {
			return consumer.Permanent(errBoom)
		}
		return queued(ctx, tx, m)
	}, cfg)
	s := r.status(c, 0, "a halt", func(s consumer.PartitionStatus) bool { return s.Halted != nil })
	if h := s.Halted; h.Reason != consumer.HaltBlocked ||
		h.Position != 4 ||
		!h.RetainedUntil.Equal(time.UnixMilli(1_700_000_000_004).Add(time.Hour)) {
		t.Errorf("%v", h)
	}
	r.status(c, 0, "three looks", func(s consumer.PartitionStatus) bool {
		if s.Halted == nil {
			t.Error("a halted partition passed for running")
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.halts) >= 3
	})
	well.Store(true)
	r.status(c, 0, "no halt", func(s consumer.PartitionStatus) bool { return s.Halted == nil && s.Position == 10 })
	r.log.DeleteBefore(0, 10)
	stop()
	r.once(values...)
	// One that is found in the log ends when the log can be read again, although nothing is
	// handled.
	r.exec(`update onlyonce.cursors set run = run + 1, run_start = 5`)
	c, stop = r.watched(queued, cfg)
	r.status(c, 0, "a gap", func(s consumer.PartitionStatus) bool { return s.Halted != nil && s.Halted.Reason == consumer.HaltGap })
	r.exec(`update onlyonce.leases set epoch = epoch + 1, nonce = gen_random_uuid()`)
	r.exec(`update onlyonce.cursors set run = run + 1, run_start = 10`)
	r.status(c, 0, "no gap", func(s consumer.PartitionStatus) bool { return s.Halted == nil && s.Position == 10 })
	stop()
}

// While a partition is paused none of its messages is handled, in this process or the next. Others
// continue, and the current batch is finished.
func TestPausedPartitionStandsStill(t *testing.T) {
	for name, topic := range map[string]string{"partition": "orders", "scope": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 2)
			r.numbered(0, 3)
			entered := make(chan struct{})
			release := make(chan struct{})
			var once sync.Once
			paused := make(chan consumer.PausedEvent, 100)
			noticed := make(chan struct{}, 100)
			cfg := testConfig()
			cfg.Hooks.Paused = func(p consumer.PausedEvent) { paused <- p }
			src := fetching{r.src, func(_ *source.Fetched[*consumer.Message], err error) {
				if err != nil {
					noticed <- struct{}{} // reading ends when the pause is noticed
				}
			}}
			c, stop := r.watchedOn(src, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				once.Do(func() { close(entered); <-release })
				return queued(ctx, tx, m)
			}, cfg)
			<-entered
			if err := c.Pause(t.Context(), topic, 0, ""); err == nil {
				t.Error("paused without a reason")
			}
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			if err := c.Pause(gone, topic, 0, "maintenance"); !errors.Is(err, context.Canceled) {
				t.Errorf("paused without an answer: %v", err)
			}
			for range 2 { // again is no error
				if err := c.Pause(t.Context(), topic, 0, "maintenance"); err != nil {
					t.Fatal(err)
				}
			}
			select {
			case <-noticed:
			// It ended between two fetches, which is not visible; the consumer checks for the pause
			// each second.
			case <-time.After(3 * time.Second):
			}
			close(release)
			for p := range paused {
				if p.Partition == 0 {
					if p.Position != 3 { // the batch in hand was finished
						t.Errorf("paused at %d", p.Position)
					}
					break
				}
			}
			still := func(c *consumer.Consumer) {
				t.Helper()
				r.status(c, 0, "a pause", func(s consumer.PartitionStatus) bool { return s.Paused })
				next := r.position(0)
				r.log.Append(0, "later", id("later"))
				if topic != "" {
					end := r.log.Append(1, "goes on", id(time.Now().String())) + 1
					r.reaches(1, end) // time has passed
				}
				s := r.status(c, 0, "still a pause", func(s consumer.PartitionStatus) bool { return s.Paused })
				if s.Position != next || r.position(0) != next {
					t.Errorf("position %d, was %d", s.Position, next)
				}
			}
			still(c)
			stop()
			c, stop = r.watched(queued, cfg)
			still(c)
			if err := c.Resume(t.Context(), topic, 0); err != nil {
				t.Fatal(err)
			}
			r.reaches(0, 5)
			r.status(c, 0, "no pause", func(s consumer.PartitionStatus) bool { return !s.Paused })
			stop()
			if n := r.count(`select count(*) from effects where part = 0`); n != 4 {
				t.Errorf("%d effects, want 4", n)
			}
		})
	}
}

// Parked messages are not tried while their partition is paused, and are when it goes on. It is
// noticed although many are due.
func TestRetriesArePausedToo(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	for _, v := range []string{"a", "b", "c"} {
		r.log.AppendMessage(0, &consumer.Message{Key: []byte(v), Value: []byte(v), Headers: []consumer.Header{id(v)}})
	}
	var well atomic.Bool
	var calls atomic.Int32
	cfg := testConfig()
	cfg.OnFailure = consumer.ParkOrderingKey
	cfg.MaxAttempts = 1_000_000
	handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Partition == 0 && !well.Load() {
			calls.Add(1)
			return errBoom
		}
		return queued(ctx, tx, m)
	}
	c, stop := r.watched(handle, cfg)
	until(t, "tries from the database", func() bool { return calls.Load() > 20 })
	if err := c.Pause(t.Context(), "orders", 0, "maintenance"); err != nil {
		t.Fatal(err)
	}
	r.status(c, 0, "a pause", func(s consumer.PartitionStatus) bool { return s.Paused && !s.Retrying })
	before := calls.Load()
	for i := range 20 {
		r.reaches(1, r.log.Append(1, "goes on", id(string(rune('A'+i))))+1)
	}
	if n := calls.Load(); n != before {
		t.Errorf("%d tries of a partition that is paused", n-before)
	}
	well.Store(true)
	if err := c.Resume(t.Context(), "orders", 0); err != nil {
		t.Fatal(err)
	}
	until(t, "the effects", func() bool { return r.count(`select count(*) from effects where part = 0`) == 3 })
	stop()
}

// statements counts what a pool sends, by the beginning of its text.
type statements struct {
	mu   sync.Mutex
	sent []string
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, q.SQL)
	return ctx
}

func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// since returns what was sent after the first n statements.
func (s *statements) since(n int) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sent[n:])
}

// An idle process asks for all of its partitions in one statement, and sends no other; its row says
// what it knows, and goes with it.
func TestOneStatementForAllPartitions(t *testing.T) {
	t.Parallel()
	const partitions = 8
	r := newRig(t, partitions)
	cfg := r.pool.Config()
	tracer := &statements{}
	cfg.ConnConfig.Tracer = tracer
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for p := range int32(partitions) {
		r.log.Append(p, "v"+strconv.Itoa(int(p)), id("m"+strconv.Itoa(int(p))))
	}
	stop := r.startOn(r.src, pool, effect, testConfig())
	for p := range int32(partitions) {
		r.reaches(p, 1)
	}
	polls := func(all []string) (n int) {
		for _, s := range all {
			if strings.Contains(s, "onlyonce.pauses") {
				n++
			}
		}
		return n
	}
	// What each partition does once when it is taken over is over when nothing else was sent during
	// three polls.
	until(t, "nothing but polls", func() bool {
		n := len(tracer.since(0))
		until(t, "three polls", func() bool { return polls(tracer.since(n)) >= 3 })
		sent := tracer.since(n)
		for _, s := range sent {
			usual := slices.ContainsFunc(
				[]string{"onlyonce.pauses", "onlyonce.rings", "onlyonce.filters", "leases"},
				func(part string) bool { return strings.Contains(s, part) },
			)
			if !usual {
				t.Logf("also sent: %.100s", s)
				return false
			}
		}
		return true
	})
	type owned struct {
		Topic     string
		Partition int32
		Position  int64
		Lag       int64
		Last      *float64 `json:"last_batch_age"`
	}
	row := func() (all []owned) {
		var raw []byte
		err := r.pool.QueryRow(t.Context(), `select partitions from onlyonce.owners where scope = 'stock' and pid = $1`,
			os.Getpid()).Scan(&raw)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err == nil {
			err = json.Unmarshal(raw, &all)
		}
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	until(t, "a row of all partitions", func() bool {
		all := row()
		for _, o := range all {
			good := o.Topic == "orders" &&
				o.Position == 1 &&
				o.Lag == 0 &&
				o.Last != nil
			if !good {
				return false
			}
		}
		return len(all) == partitions
	})
	if err := r.consumer.Pause(t.Context(), "orders", 3, "a test"); err != nil {
		t.Fatal(err)
	}
	until(t, "a row that says what is paused", func() bool {
		return r.count(`
select count(*)
  from onlyonce.owners o, jsonb_array_elements(o.partitions) p
 where (p ->> 'paused')::boolean and (p ->> 'partition')::int = 3`) == 1
	})
	stop()
	if n := r.count(`select count(*) from onlyonce.owners`); n != 0 {
		t.Errorf("%d rows are left behind a stop in order", n)
	}
}

// A halt is written at once, and is known to a process that only reads the database.
func TestHaltIsKnownToTheDatabase(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Append(0, "v0", id("m0"))
	cfg := testConfig()
	cfg.OnFailure = consumer.BlockPartition
	stop := r.start(func(context.Context, consumer.Tx, *consumer.Message) error {
		return consumer.Permanent(errors.New("out of stock"))
	}, cfg)
	defer stop()
	until(t, "a row that says what is halted", func() bool {
		return r.count(`select count(*) from onlyonce.owners o, jsonb_array_elements(o.partitions) p
			where p ->> 'halted' = 'blocked' and p ->> 'detail' like '%out of stock%' and (p ->> 'halted_for')::float8 >= 0`) == 1
	})
}
