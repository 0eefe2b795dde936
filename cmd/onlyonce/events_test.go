package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/eventsource"
	"github.com/onlyonce/onlyonce/internal/reports"
)

// eventShop is a consumer of a stream of the event log.
type eventShop struct {
	*shop
	broken atomic.Bool
	n      int
}

func newEventShop(t *testing.T, policy consumer.FailurePolicy) *eventShop {
	t.Helper()
	s := &eventShop{shop: newShop(t)}
	s.broken.Store(true)
	if _, err := eventsource.MakeStream(t.Context(), s.pool, "hooks", 1); err != nil {
		t.Fatal(err)
	}
	source, err := eventsource.NewSource(s.pool, eventsource.Config{
		Group:        "g",
		Topics:       []string{"hooks"},
		PollInterval: 10 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := consumer.New(s.pool, source, consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.ID() != string(m.Value) || m.Tenant() != "t" {
			return consumer.Permanent(fmt.Errorf("id %q, tenant %q", m.ID(), m.Tenant()))
		}
		if s.broken.Load() && string(m.Key) == "bad" {
			return errors.New("not now")
		}
		return effect(ctx, tx, m)
	}), consumer.Config{
		Scope:       "stock",
		OnFailure:   policy,
		Backoff:     dedupe.Backoff{Min: time.Millisecond, Max: time.Millisecond},
		MaxAttempts: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(apart(t.Context()))
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *eventShop) append(keys ...string) {
	s.t.Helper()
	err := pgx.BeginFunc(s.t.Context(), s.pool, func(tx pgx.Tx) error {
		for _, key := range keys {
			s.n++
			id := fmt.Sprintf("%s-%d", key, s.n)
			if err := eventsource.Append(s.t.Context(), tx, eventsource.Event{
				Topic:   "hooks",
				Tenant:  "t",
				ID:      id,
				Key:     []byte(key),
				Body:    []byte(id),
				Headers: []consumer.Header{{Name: "h", Value: []byte("v")}},
			}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// An event that fails is parked as an event and blocks its ordering key. It can be redriven,
// discarded and replayed like a message (E4).
func TestParkedEvents(t *testing.T) {
	t.Parallel()
	s := newEventShop(t, consumer.ParkOrderingKey)
	s.append("a", "bad", "bad", "b", "bad")
	s.until(`select count(*) = 2 from effects`)
	s.until(`select string_agg(kind || ':' || state || ':' || reason || ':' || event_id, ' ' order by "offset")
		= 'event:waiting:exhausted:bad-2 event:blocked:behind:bad-3 event:blocked:behind:bad-5' from onlyonce.parked`)
	s.run("parked", "list", "-kind", "event").want(t, statusGood, "hooks/0@1")
	head := one[string](s.fixture, `select id::text from onlyonce.parked where event_id = 'bad-2'`)
	last := one[string](s.fixture, `select id::text from onlyonce.parked where event_id = 'bad-5'`)
	s.run("parked", "show", "-id", head).want(t, statusGood, "bad-2", "event")
	s.run("parked", "redrive", "-id", last, "-reason", "x", "-yes").want(t, statusFailed, "is blocked behind another")
	s.run("parked", "redrive", "-scope", "stock", "-reason", "x", "-yes").want(t, statusFailed, "no parked row that could be changed")
	s.run("parked", "redrive", "-id", head, "-new-key", "-reason", "x", "-yes").want(t, statusFailed, "is a parked event", "are for calls")
	s.broken.Store(false)
	s.run("parked", "discard", "-id", last, "-reason", "x", "-yes").want(t, statusGood, "Done: 1 discarded")
	s.run("parked", "redrive", "-kind", "event", "-scope", "stock", "-reason", "x", "-yes").want(t, statusGood, "Done: 1 are due now")
	s.until(`select count(*) = 4 from effects`)
	s.times(map[int64]int{0: 1, 1: 1, 2: 1, 3: 1})
	s.until(`select bool_and(settled_at is not null) from onlyonce.parked`)

	s.run("replay", "-scope", "stock", "-topic", "hooks", "-partition", "0", "-from", "2", "-to", "4", "-reason", "x", "-yes").want(
		t,
		statusGood,
		"Done: replay 1",
	)
	s.until(`select count(*) = 6 from effects`)
	s.times(map[int64]int{0: 1, 1: 1, 2: 2, 3: 2})
	s.append("a")
	s.until(`select count(*) = 7 from effects`)
	s.run("cursor", "show").want(t, statusGood, "hooks", "postgres")
	s.run("status").want(t, statusGood, "hooks")
	s.exec(`insert into onlyonce.streams (topic, partitions) values ('unread', 2);
		select onlyonce.append_events('{unread}', '{0}', '{t}', '{e1}', '{k}', '{0}', '{}', '{}', '{x}')`)
	s.until(`select count(*) = 7 from effects`)
	r := s.run("events", "status").want(t, statusGood, "hooks", "stock", "unread", "0 current")
	t.Log("\n" + r.out)
	var all struct {
		Streams []reports.Stream `json:"streams"`
	}
	if err := json.Unmarshal([]byte(s.run("events", "status", "-json").want(t, statusGood).out), &all); err != nil {
		t.Fatal(err)
	}
	good := len(all.Streams) == 2 &&
		all.Streams[0].Kept == 6 &&
		*all.Streams[0].Behind == 0 &&
		*all.Streams[0].Scope == "stock" &&
		all.Streams[0].Partitions == 1 &&
		all.Streams[1].Scope == nil &&
		all.Streams[1].Kept == 1 &&
		all.Streams[1].Behind == nil
	if !good {
		t.Errorf("%+v", all)
	}
	s.run("events", "status", "-topic", "nowhere").want(t, statusGood)
	if n := one[int](s.fixture, `select count(*) from onlyonce.inbox`); n != 0 {
		t.Errorf("%d keys were claimed: events are when they are appended", n)
	}
}

// An event that an endpoint has set aside before appending it is appended when it is redriven (W7).
func TestRedriveOfWhatWasNeverAppended(t *testing.T) {
	t.Parallel()
	s := newEventShop(t, consumer.ParkMessage)
	s.exec(`insert into onlyonce.parked (kind, reason, scope, tenant, topic, event_id, record_key, header_names, header_values, body)
		values ('event', 'same-body', 'webhook/x', 't', 'hooks', 'e1', 'a', '{h}', '{v}', 'e1'),
		('event', 'same-body', 'webhook/x', 't', 'nowhere', 'e2', 'a', '{}', '{}', 'e2')`)
	id := func(event string) string {
		return one[string](s.fixture, `select id::text from onlyonce.parked where event_id = $1`, event)
	}
	s.run("parked", "redrive", "-id", id("e2"), "-reason", "x", "-yes").want(
		t,
		statusFailed,
		`there is no stream "nowhere"`,
		"start a consumer of it first",
	)
	s.run("parked", "redrive", "-id", id("e1"), "-reason", "x", "-yes").want(t, statusGood, "Done: 1 are due now")
	s.until(`select count(*) = 1 from effects`)
	if got := one[string](s.fixture, `select state from onlyonce.parked where event_id = 'e1'`); got != "resolved" {
		t.Errorf("the row is %s", got)
	}
}

// Events that were handled can be erased, and a replay skips them. Events that may still be handled
// cannot.
func TestEventsErase(t *testing.T) {
	t.Parallel()
	s := newEventShop(t, consumer.ParkMessage)
	erase := func(args ...string) result {
		return s.run(append([]string{"events", "erase", "-topic", "hooks", "-reason", "GDPR", "-yes"}, args...)...)
	}
	s.append("a", "bad", "a", "b")
	s.until(`select count(*) = 3 from effects`)
	s.until(`select count(*) = 1 from onlyonce.parked where state = 'waiting'`)
	erase("-key", "bad").want(t, statusFailed, "is parked (waiting)", "parked discard")
	erase("-key", "a").want(t, statusGood, "a-1", "a-3", "Done: erased")
	erase("-key", "a").want(t, statusGood, "erased already")
	erase("-id", "nobody").want(t, statusEnvironment, "has no such event")
	erase("-id", "b-4", "-key", "b").want(t, statusEnvironment, "goes with no -key")
	s.run("parked", "discard", "-kind", "event", "-scope", "stock", "-reason", "x", "-yes").want(t, statusGood, "Done: 1 discarded")
	erase("-id", "bad-2").want(t, statusGood, "parked", "log", "Done: erased")
	if n := one[int](
		s.fixture,
		`select count(*) from onlyonce.event_log where erased_at is not null and body is null and header_names = '{}'`,
	); n != 3 {
		t.Errorf("%d events are erased, want 3", n)
	}
	if n := one[int](s.fixture, `select count(*) from onlyonce.parked where erased_at is not null and body is null`); n != 1 {
		t.Errorf("%d parked rows are erased, want 1", n)
	}
	if n := one[int](s.fixture, `select count(*) from onlyonce.audit where action = 'events erase'`); n != 2 {
		t.Errorf("%d audit rows", n)
	}
	s.run("replay", "-scope", "stock", "-topic", "hooks", "-partition", "0", "-from", "0", "-to", "4", "-reason", "x", "-yes").want(
		t,
		statusGood,
	)
	s.until(`select count(*) = 4 from effects`)
	s.append("c")
	s.until(`select count(*) = 5 from effects`)
	s.times(map[int64]int{0: 1, 2: 1, 3: 2, 4: 1})

	s.exec(`insert into onlyonce.streams (topic, partitions) values ('unread', 1);
		select onlyonce.append_events('{unread}', '{0}', '{t}', '{e1}', '{k}', '{0}', '{}', '{}', '{x}')`)
	s.run("events", "erase", "-topic", "unread", "-id", "e1", "-reason", "x", "-yes").want(t, statusFailed, "no consumer has begun")
}
