package main

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// testPatience bounds the waits of tests. Mutants, which make tests wait in vain, shorten it.
var testPatience = pgtest.Patience(time.Minute)

// shop is a fixture with a log, and a table of effects without a unique constraint, so that
// repeated effects show.
type shop struct {
	*fixture
	log *memlog.Log
}

func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{newFixture(t), memlog.NewLog("orders", 1)}
	s.exec(`create table effects (value text, off bigint, n bigint generated always as identity)`)
	return s
}

func id(v string) consumer.Header { return consumer.Header{Name: "message-id", Value: []byte(v)} }

// keyed appends messages of one record key, each with its value for an id.
func (s *shop) keyed(key string, values ...string) {
	for _, v := range values {
		s.log.AppendMessage(0, &consumer.Message{Key: []byte(key), Value: []byte(v), Headers: []consumer.Header{id(v)}})
	}
}

func effect(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	_, err := tx.Exec(ctx, `insert into effects (value, off) values ($1, $2)`, string(m.Value), m.Offset)
	return err
}

// start runs a consumer of scope stock until stop is called.
func (s *shop) start(h consumer.HandlerFunc, change func(*consumer.Config)) (stop func()) {
	s.t.Helper()
	return s.startOn(&memlog.Source{Log: s.log, GroupID: "g1"}, h, change)
}

// startOn is start with a source of the caller's.
func (s *shop) startOn(src consumer.Source, h consumer.HandlerFunc, change func(*consumer.Config)) (stop func()) {
	s.t.Helper()
	cfg := consumer.Config{
		Scope:        "stock",
		Key:          consumer.HeaderKey("message-id"),
		BatchSize:    10,
		Linger:       time.Millisecond,
		MaxAttempts:  2,
		Backoff:      dedupe.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond},
		DrainTimeout: 50 * time.Millisecond,
		Timeouts:     dedupe.Timeouts{Lock: 2 * time.Second},
	}
	if change != nil {
		change(&cfg)
	}
	c, err := consumer.New(s.pool, src, h, cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(apart(s.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Errorf("Run: %v", err)
		}
	})
	s.t.Cleanup(stop)
	return stop
}

// apart returns a context, which does not end, of a process of its own. In one process an attempt
// that is to be alone (F9) waits for all handlers, also those of other tests.
func apart(ctx context.Context) context.Context {
	return process.With(context.WithoutCancel(ctx), &process.Process{})
}

// reaches waits until the position is there and no replay is under way.
func (s *shop) reaches(offset int64) {
	s.t.Helper()
	s.until(fmt.Sprintf(`select coalesce(bool_and(next_offset = %d and replay_until is null), false) from onlyonce.positions`, offset))
}

// effects returns the values in the order in which they took effect.
func (s *shop) effects() string {
	s.t.Helper()
	return one[string](s.fixture, `select coalesce(string_agg(value, ' ' order by n), '') from effects`)
}

// parkedID is the id of the row that holds a value.
func (s *shop) parkedID(value string) string {
	s.t.Helper()
	return one[string](s.fixture, `select id::text from onlyonce.parked where body = convert_to($1, 'UTF8') order by id desc limit 1`,
		value)
}

// states returns the states of parked rows, by value, in the order of their offsets.
func (s *shop) states() string {
	s.t.Helper()
	return one[string](
		s.fixture,
		`select coalesce(string_agg(convert_from(body, 'UTF8') || ':' || state, ' ' order by "offset", id), '') from onlyonce.parked`,
	)
}

// broken is a handler that gives up some values until it is repaired.
type broken struct {
	mu   sync.Mutex
	sick map[string]bool
}

func breaks(values ...string) *broken {
	b := &broken{sick: map[string]bool{}}
	for _, v := range values {
		b.sick[v] = true
	}
	return b
}

func (b *broken) mend() { b.mu.Lock(); defer b.mu.Unlock(); clear(b.sick) }

func (b *broken) handle(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	b.mu.Lock()
	sick := b.sick[string(m.Value)]
	b.mu.Unlock()
	if sick {
		return consumer.Permanent(fmt.Errorf("no such sku\nat line 2 of %s", m.Value))
	}
	return effect(ctx, tx, m)
}
