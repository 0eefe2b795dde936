package main

import (
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/eventsource"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// scriptedSink rejects calls until the test makes it accept them, and keeps their keys and bodies.
type scriptedSink struct {
	accepts atomic.Bool
	mu      sync.Mutex
	got     []string
}

func (s *scriptedSink) Name() string { return "payments" }
func (s *scriptedSink) Limits() outbox.Limits {
	return outbox.Limits{KeyWindow: outbox.Forever, Timeout: time.Minute}
}

func (s *scriptedSink) Send(_ context.Context, a *outbox.Attempt) outbox.Result {
	if !s.accepts.Load() {
		return outbox.Result{Outcome: outbox.Rejected, Reason: "refused"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, a.Key+" "+string(a.Body))
	return outbox.Result{Outcome: outbox.Delivered}
}

// O13: a sealed call is sent under a new key, twice. It is opened under the key that it was sealed
// under, and the calls that it blocks follow.
func TestO13RedriveOfASealedCallUnderANewKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	sealer := pgtest.Sealer(t, 1)
	sink := &scriptedSink{}
	relay, err := outbox.NewRelay(f.pool, outbox.RelayConfig{
		Sinks:        []outbox.Sink{sink},
		Sealer:       sealer,
		PollInterval: 10 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	err = pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		for _, name := range []string{"first", "second"} {
			call := outbox.Call{
				Sink:        "payments",
				Name:        name,
				Scope:       "checkout",
				ID:          name,
				OrderingKey: "k",
				Sealer:      sealer,
				Body:        []byte(name),
			}
			if err := outbox.Enqueue(t.Context(), tx, call); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	f.until(`select count(*) = 2 from onlyonce.parked where state in ('waiting', 'blocked')`)
	id := number(one[int64](f, `select id from onlyonce.parked where call_name = 'first'`))
	original := one[string](f, `select key::text from onlyonce.parked where call_name = 'first'`)
	f.redrives("-id", id, "-new-key").want(t, statusGood, "under new keys")
	f.until(`select state = 'waiting' and reason = 'rejected' and attempts = 1 from onlyonce.parked where call_name = 'first'`)
	sink.accepts.Store(true)
	f.redrives("-id", id, "-new-key").want(t, statusGood, "under new keys")
	f.until(`select count(*) = 2 from onlyonce.parked where state = 'resolved'`)
	key := one[string](f, `select key::text from onlyonce.parked where call_name = 'first'`)
	if got := one[string](f, `select first_key::text from onlyonce.parked where call_name = 'first'`); got != original || key == original {
		t.Errorf("goes out under %s, was sealed under %s, and opened under %s", key, original, got)
	}
	row := one[int64](f, `select row_id from onlyonce.parked where call_name = 'first'`)
	sink.mu.Lock()
	defer sink.mu.Unlock()
	if want := parked.NewKey(parked.NewKey(original, row, 0), row, 1) + " first"; len(sink.got) != 2 ||
		sink.got[0] != want ||
		sink.got[1][37:] != "second" {
		t.Errorf("the remote got %q, want %q and then the second", sink.got, want)
	}
}

// keyFile writes a file for -seal-keys with a key that begins with a byte.
func keyFile(t *testing.T, first byte) string {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "secret")
	keys := filepath.Join(t.TempDir(), "keys.json")
	for name, text := range map[string]string{
		secret: base64.StdEncoding.EncodeToString(append([]byte{first}, make([]byte, 31)...)),
		keys:   `{"seal_keys": [{"id": 1, "key": {"file": "` + secret + `"}}]}`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return keys
}

// D9, W22: the sealed value of a parked message, and the sealed body of an event that was set aside
// or is in the log, are shown with their key only.
func TestD9ShowOfSealedRows(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	sealer := pgtest.Sealer(t, 1)
	sealed := func(place [16]byte) []byte {
		body, err := sealer.Seal(place, []byte("private"))
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	event := sealed(parked.EventPlace("", "webhook.gh", "gh/github/1"))
	show := func(id int64) []string { return []string{"parked", "show", "-id", strconv.FormatInt(id, 10), "-body"} }
	message := one[int64](
		f,
		`insert into onlyonce.parked (kind, state, reason, scope, topic, partition, "offset", body, sealed)
		values ('message', 'waiting', 'failed', 'sealed', 'orders', 3, 7, $1, true) returning id`,
		sealed(parked.MessagePlace("sealed", "orders", 3, 7)),
	)
	aside := one[int64](
		f,
		`insert into onlyonce.parked (kind, state, reason, scope, topic, event_id, body, header_names, header_values)
		values ('event', 'waiting', 'same-body', 'webhook/gh', 'webhook.gh', 'gh/github/1', $1, array['`+parked.HeaderSealed+`'::bytea],
			array['true'::bytea]) returning id`,
		event,
	)
	f.exec(`insert into onlyonce.streams (topic, partitions) values ('webhook.gh', 1)`)
	err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		return eventsource.Append(t.Context(), tx, eventsource.Event{
			Topic:   "webhook.gh",
			ID:      "gh/github/1",
			Body:    event,
			Headers: []consumer.Header{{Name: parked.HeaderSealed, Value: []byte("true")}},
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		show(message),
		show(aside),
		{"events", "show", "-topic", "webhook.gh", "-partition", "0", "-offset", "0", "-body"},
	} {
		f.run(args...).want(t, statusGood, "sealed, 40 B")
		f.run(append(args, "-seal-keys", keyFile(t, 1))...).want(t, statusGood, "private")
		f.run(append(args, "-seal-keys", keyFile(t, 2))...).want(t, statusEnvironment, "not a sealed value")
	}
}
