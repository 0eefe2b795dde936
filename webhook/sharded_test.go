package webhook_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/shard"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
)

// N2, N3: an endpoint's events are stored and handled in the database of their place. When the
// place moves, its sender gets 503 for a while, and what was accepted before is a duplicate
// afterwards.
func TestN2EndpointMoves(t *testing.T) {
	t.Parallel()
	a := newRig(t)
	b := newRig(t)
	var moved atomic.Bool
	set, err := shard.New(shard.Config{Pools: map[string]*pgxpool.Pool{"a": a.recv, "b": b.recv}, OfPlace: func(place string) string {
		if place != "e" {
			t.Errorf("the place is %q", place)
		}
		if moved.Load() {
			return "b"
		}
		return "a"
	}})
	if err != nil {
		t.Fatal(err)
	}
	s := samples(t)["Stripe"]
	cfg := webhook.Config{Name: "e", Provider: s.provider, Secrets: []string{s.secret}, Partitions: 4, Hooks: a.hooks()}
	endpoint, err := webhook.NewSharded(set, cfg)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/hooks", endpoint)
	e := a.serveMux(s, mux, "/hooks")
	e.send(stripeBody("evt_0", "")).want(t, 200, false)
	leave := func() string {
		done, err := ops.LeavePlace(t.Context(), a.pool, ops.By{Reason: "OPS-40"}, ops.LeavePlaceInput{Place: "e", To: "b"})
		if err != nil {
			t.Fatal(err)
		}
		return done.After
	}
	if state := leave(); state != "leaving" { // nothing handles the event yet
		t.Fatal(state)
	}
	if got := e.send(stripeBody("evt_1", "")); got.status != http.StatusServiceUnavailable {
		t.Errorf("while it leaves: %v", got)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 3)
	for _, db := range []*rig{a, b} {
		worker := db.consumer(effect)
		go func() { done <- worker.Run(ctx) }()
	}
	go func() { done <- endpoint.Upkeep(ctx) }()
	a.until("it is ready", func() bool { return endpoint.Ready() == nil })
	a.until("it has left", func() bool { return leave() == "left" })
	moved.Store(true)
	if got := e.send(stripeBody("evt_1", "")); got.status != http.StatusServiceUnavailable {
		t.Errorf("before it is adopted: %v", got)
	}
	from := &ops.Origin{DB: a.pool, Name: "a", As: "b", StandardKeys: true}
	if _, err := ops.AdoptPlace(t.Context(), b.pool, ops.By{Reason: "OPS-40"}, ops.AdoptPlaceInput{Place: "e", From: from}); err != nil {
		t.Fatal(err)
	}
	e.send(stripeBody("evt_0", "")).want(t, 200, true)
	e.send(stripeBody("evt_1", "")).want(t, 200, false)
	b.until("the new event is handled in b", func() bool { return b.count("effects") == 1 })
	if ids := one[string](a, `select string_agg(id, ' ') from effects`) + " " +
		one[string](b, `select string_agg(id, ' ') from effects`); ids != "evt_0 evt_1" {
		t.Errorf("effects %s", ids)
	}
	moved.Store(false) // a process with the old function
	if got := e.send(stripeBody("evt_2", "")); got.status != http.StatusServiceUnavailable {
		t.Errorf("in the old database: %v", got)
	}
	stop()
	for range 3 {
		if err := pgtest.Receive(t, patience, "it is done", done); err != nil {
			t.Error(err)
		}
	}
	if _, err := consumer.New(a.recv, endpoint, consumer.HandlerFunc(effect), consumer.Config{Scope: "e"}); err == nil ||
		!strings.Contains(err.Error(), "consume the events of each with webhook.NewSource") {
		t.Errorf("a consumer of several databases: %v", err)
	}
}

// Events of tenants are stored in the databases of their tenants. Each database takes its own from
// a list of the sender's.
func TestShardedEndpointByTenant(t *testing.T) {
	t.Parallel()
	a := newRig(t)
	b := newRig(t)
	set, err := shard.New(shard.Config{
		Pools:   map[string]*pgxpool.Pool{"a": a.recv, "b": b.recv},
		OfPlace: func(place string) string { return place },
	})
	if err != nil {
		t.Fatal(err)
	}
	s := samples(t)["Stripe"]
	cfg := webhook.Config{
		Name:     "e",
		Provider: s.provider,
		Secrets:  []string{s.secret},
		Mode:     webhook.Inline,
		Handler:  consumer.HandlerFunc(effect),
		Tenant:   func(e *webhook.Event) string { return strings.Split(e.ID, "_")[0] },
		Backfill: &webhook.Backfill{List: func(_ context.Context, _ time.Time, each func(*webhook.Event) error) error {
			return errors.Join(
				each(&webhook.Event{ID: "a_0", Time: time.Now(), Body: []byte("{}")}),
				each(&webhook.Event{ID: "b_2", Time: time.Now(), Body: []byte("{}")}),
			)
		}},
	}
	endpoint, err := webhook.NewSharded(set, cfg)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/hooks", endpoint)
	e := a.serveMux(s, mux, "/hooks")
	e.send(stripeBody("a_0", "")).want(t, 200, false)
	e.send(stripeBody("b_1", "")).want(t, 200, false)
	e.send(stripeBody("a_0", "")).want(t, 200, true)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- endpoint.Upkeep(ctx) }()
	b.until("the missed event is taken", func() bool { return b.count("effects") == 2 })
	a.until("both databases have listed", func() bool {
		return a.count("onlyonce.webhook_endpoints where backfilled_at is not null") == 1 &&
			b.count("onlyonce.webhook_endpoints where backfilled_at is not null") == 1
	})
	if a.count("effects") != 1 || b.count("effects") != 2 {
		t.Errorf("%d and %d effects", a.count("effects"), b.count("effects"))
	}
	stop()
	if err := pgtest.Receive(t, patience, "it is done", done); err != nil {
		t.Error(err)
	}
	for _, wrong := range []func() (*webhook.Endpoint, error){
		func() (*webhook.Endpoint, error) { return webhook.NewSharded(nil, cfg) },
		func() (*webhook.Endpoint, error) {
			cfg := cfg
			cfg.Name = "a/b"
			return webhook.NewSharded(set, cfg)
		},
	} {
		if _, err := wrong(); !errors.Is(err, webhook.ErrConfig) {
			t.Error(err)
		}
	}
}

// A set that was made for consumers does not say where a webhook lives.
func TestSetWithoutPlacesIsRefused(t *testing.T) {
	t.Parallel()
	set, err := shard.New(shard.Config{
		Pools:       map[string]*pgxpool.Pool{"a": pgtest.DB(t)},
		OfPartition: func(string, int32) string { return "a" },
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := webhook.NewSharded(set, webhook.Config{}); !errors.Is(err, webhook.ErrConfig) ||
		!strings.Contains(err.Error(), "OfPlace: must not be nil") {
		t.Errorf("%v", err)
	}
}
