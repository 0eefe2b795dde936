package onlyoncetest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/onlyoncetest"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// withTable returns a pool with a table of effects.
func withTable(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := onlyoncetest.Pool(t)
	if _, err := pool.Exec(t.Context(), `create table effects (value text)`); err != nil {
		t.Fatal(err)
	}
	return pool
}

func effects(t *testing.T, pool *pgxpool.Pool) (s string) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `select coalesce(string_agg(value, ' ' order by value), '') from effects`).Scan(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

// effect does what the value of its message says.
func effect(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	switch v := string(m.Value); v {
	case "bad":
		return consumer.Permanent(errors.New("a bad one"))
	case "call":
		return outbox.Enqueue(ctx, tx, outbox.Call{
			Sink:   "mail",
			Name:   "send",
			Target: "/" + m.ID(),
			Body:   []byte("hello"),
			Header: map[string][]string{"X-Kind": {"a", "b"}},
		})
	default:
		_, err := tx.Exec(ctx, `insert into effects values ($1)`, v)
		return err
	}
}

func said(r onlyoncetest.Result) string {
	var b strings.Builder
	for name, msgs := range map[string][]onlyoncetest.Message{"applied": r.Applied, "skipped": r.Skipped} {
		for _, m := range msgs {
			_, _ = fmt.Fprintf(&b, "%s:%s ", name[:1], m.Value)
		}
	}
	for _, p := range r.Parked {
		_, _ = fmt.Fprintf(&b, "p:%s:%s ", p.Message.Value, p.Reason)
	}
	return b.String()
}

func TestApply(t *testing.T) {
	t.Parallel()
	pool := withTable(t)
	got := onlyoncetest.Apply(t, pool, consumer.HandlerFunc(effect), consumer.Config{},
		onlyoncetest.Message{ID: "1", Value: "one"},
		onlyoncetest.Message{ID: "2", Value: "bad"},
		onlyoncetest.Message{ID: "3", Value: "call"},
		onlyoncetest.Message{Value: "without"})
	good := len(got.Applied) == 2 &&
		len(got.Parked) == 2 &&
		len(got.Skipped) == 0 &&
		len(got.Calls) == 1
	if !good {
		t.Fatalf("%s, %d calls", said(got), len(got.Calls))
	}
	if p := got.Parked[0]; p.Reason != "permanent" || p.Message.ID != "2" || !strings.Contains(p.Err.Error(), "a bad one") {
		t.Errorf("%+v", p)
	}
	if p := got.Parked[1]; p.Reason != "no-key" {
		t.Errorf("%+v", p)
	}
	c := got.Calls[0]
	good = c.Sink == "mail" &&
		c.Name == "send" &&
		c.Target == "/3" &&
		c.Method == "POST" &&
		string(c.Body) == "hello" &&
		fmt.Sprint(c.Header) == "map[X-Kind:[a b]]" &&
		len(c.Key) == 36
	if !good {
		t.Errorf("%+v", c)
	}
	// A copy, the same id with another payload, and one that is new.
	got = onlyoncetest.Apply(
		t,
		pool,
		consumer.HandlerFunc(effect),
		consumer.Config{},
		onlyoncetest.Message{ID: "1", Value: "one"},
		onlyoncetest.Message{ID: "1", Value: "other"},
		onlyoncetest.Message{ID: "4", Value: "four"},
	)
	good = len(got.Applied) == 1 &&
		len(got.Skipped) == 1 &&
		len(got.Parked) == 1 &&
		got.Parked[0].Reason == "conflict" &&
		len(got.Calls) == 0
	if !good {
		t.Errorf("%s", said(got))
	}
	if got := effects(t, pool); got != "four one" {
		t.Errorf("effects %q", got)
	}
}

func TestApplyBatch(t *testing.T) {
	t.Parallel()
	pool := withTable(t)
	handle := func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
		for _, m := range msgs {
			if string(m.Value) == "bad" {
				return consumer.FailMessage(m, consumer.Permanent(errors.New("no")))
			}
			tx.Queue(`insert into effects values ($1)`, string(m.Value))
		}
		return nil
	}
	msgs := []onlyoncetest.Message{{Value: "a"}, {Value: "bad"}, {Value: "b", Partition: 1}, {Value: "c", Topic: "other"}}
	got := onlyoncetest.Apply(t, pool, consumer.BatchHandlerFunc(handle), consumer.Config{PositionsOnly: true}, msgs...)
	if len(got.Applied) != 3 || len(got.Parked) != 1 || effects(t, pool) != "a b c" {
		t.Errorf("%s: %s", said(got), effects(t, pool))
	}
}

// A message that fails at first and is retried from the database counts as applied.
func TestApplyRetries(t *testing.T) {
	t.Parallel()
	pool := withTable(t)
	runs := 0
	handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if runs++; runs < 4 {
			return errors.New("not yet")
		}
		return effect(ctx, tx, m)
	}
	got := onlyoncetest.Apply(
		t,
		pool,
		consumer.HandlerFunc(handle),
		consumer.Config{OnFailure: consumer.ParkOrderingKey},
		onlyoncetest.Message{ID: "1", Key: "k", Value: "one"},
	)
	if len(got.Applied) != 1 || len(got.Parked) != 0 || effects(t, pool) != "one" {
		t.Errorf("%s: %s", said(got), effects(t, pool))
	}
}

// A stored event is applied as any message, under the id that its endpoint gives it.
func TestApplyEvents(t *testing.T) {
	t.Parallel()
	pool := withTable(t)
	handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		e, err := webhook.EventOf(m)
		if err != nil {
			return consumer.Permanent(err)
		}
		_, err = tx.Exec(ctx, `insert into effects values ($1)`,
			fmt.Sprintf("%s is %s (%s, %d headers)", e.ID, e.Type, m.ID(), len(e.Header)))
		return err
	}
	paid := &webhook.Event{
		Provider: "stripe",
		ID:       "evt_1",
		Type:     "invoice.paid",
		Header:   http.Header{"Content-Type": {"application/json"}},
		Body:     []byte(`{}`),
	}
	stored := onlyoncetest.FromMessage(paid.Message("pay"))
	got := onlyoncetest.Apply(
		t,
		pool,
		consumer.HandlerFunc(handle),
		consumer.Config{Scope: webhook.Scope("pay")},
		stored,
		stored,
		onlyoncetest.Message{Topic: webhook.Topic("pay"), ID: "none", Value: "no event"},
	)
	if len(got.Applied) != 1 || len(got.Skipped) != 1 || len(got.Parked) != 1 {
		t.Errorf("%s", said(got))
	}
	if got := effects(t, pool); got != "evt_1 is invoice.paid (pay/stripe/evt_1, 1 headers)" {
		t.Error(got)
	}
}

// Requests are sent once each, and their answers returned: a second one with the same key gets the
// first one's.
func TestSend(t *testing.T) {
	t.Parallel()
	pool := withTable(t)
	layer, err := idempotency.New(pool, layerConfig())
	if err != nil {
		t.Fatal(err)
	}
	h, err := layer.Handle(
		idempotency.Route{Pattern: "/charges", KeyWindow: 24 * time.Hour, Mode: idempotency.Transactional, HandlerTimeout: 2 * time.Second},
		charge(nil),
	)
	if err != nil {
		t.Fatal(err)
	}
	one := onlyoncetest.Request{Path: "/charges", Key: "k-1", Body: "1"}
	got := onlyoncetest.Send(
		t,
		h,
		one,
		one,
		onlyoncetest.Request{Path: "/charges", Key: "k-1", Body: "2"},
		onlyoncetest.Request{Path: "/charges", Body: "3"},
	)
	good := got[0].Code == http.StatusCreated &&
		got[0].Body.String() == "charged 1" &&
		got[1].Body.String() == "charged 1" &&
		got[2].Code == http.StatusUnprocessableEntity &&
		got[3].Code == http.StatusBadRequest
	if !good {
		t.Errorf("%+v", got)
	}
	if text := failing(t, func(t testing.TB) {
		onlyoncetest.Send(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("a bug") }), one)
	}); !strings.Contains(text, "panicked") {
		t.Error(text)
	}
}

// failing runs a function with a testing.TB that keeps what Fatalf says.
func failing(t *testing.T, f func(t testing.TB)) string {
	t.Helper()
	x := &fatal{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if r := recover(); r != nil && r != any(x) {
				panic(r)
			}
		}()
		f(x)
	}()
	<-done
	return x.text
}

type fatal struct {
	testing.TB
	text string
}

func (f *fatal) Fatalf(format string, args ...any) {
	f.text += fmt.Sprintf(format, args...)
	panic(f)
}

func (f *fatal) Errorf(format string, args ...any) { f.text += fmt.Sprintf(format, args...) + "\n" }
func (f *fatal) Failed() bool                      { return f.text != "" }

// What keeps messages from being settled fails the test with its reason.
func TestApplyReports(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, want string
		cfg        consumer.Config
		handle     consumer.HandlerFunc
	}{
		{"config", "MaxAttempts", consumer.Config{MaxAttempts: -1}, effect},
		{"halt", "halted at offset 0", consumer.Config{OnFailure: consumer.BlockPartition}, effect},
	} {
		t.Run(c.name, func(t *testing.T) {
			pool := withTable(t)
			got := failing(t, func(t testing.TB) {
				onlyoncetest.Apply(t, pool, c.handle, c.cfg, onlyoncetest.Message{ID: "1", Value: "bad"})
			})
			if !strings.Contains(got, c.want) {
				t.Errorf("it says %q, want %q in it", got, c.want)
			}
		})
	}
}

// Tests get one database after the other, and each finds it empty.
func TestPoolIsEmptied(t *testing.T) {
	t.Parallel()
	for i := range 2 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			pool := withTable(t) // fails if the table is there
			onlyoncetest.Apply(t, pool, consumer.HandlerFunc(effect), consumer.Config{}, onlyoncetest.Message{ID: "1", Value: "call"})
			calls, err := onlyoncetest.Calls(t.Context(), pool)
			if err != nil || len(calls) != 1 {
				t.Errorf("%d calls, %v", len(calls), err)
			}
		})
	}
}
