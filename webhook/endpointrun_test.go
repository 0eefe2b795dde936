package webhook_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
)

// An endpoint is the source of what it stores, and its requests wake the consumer: a poll would
// come after the test's end.
func TestEndpointIsASource(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := samples(t)["Stripe"]
	endpoint := r.receiver(s, func(c *webhook.Config) { c.PollInterval = time.Hour })
	worker, err := consumer.New(r.recv, endpoint, consumer.HandlerFunc(effect), consumer.Config{
		Scope:  webhook.Scope("e"),
		Linger: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/hooks", endpoint)
	e := r.serveMux(s, mux, "/hooks")
	e.send(stripeBody("evt_0", "")).want(t, 200, false) // requests are served without Run
	if err := worker.Ready(); err == nil || !strings.Contains(err.Error(), "not ready") {
		t.Errorf("Ready before Run: %v", err)
	}
	if endpoint.Ready() == nil {
		t.Error("the endpoint is ready before its consumer runs")
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- worker.Run(ctx) }()
	r.until("what was stored before is applied", func() bool { return r.count("effects") == 1 })
	for i := range 12 { // also in partitions that have been looked at
		id := fmt.Sprint("evt_", 1+i)
		e.send(stripeBody(id, "")).want(t, 200, false)
		e.send(stripeBody(id, "")).want(t, 200, true)
		r.until("the new event is applied", func() bool { return r.count("effects") == 2+i })
	}
	r.until("it is ready", func() bool { return worker.Ready() == nil && endpoint.Ready() == nil })
	if err := endpoint.Healthy(); err != nil {
		t.Error(err)
	}
	status, err := worker.Status(t.Context())
	if err != nil || len(status) != 4 {
		t.Errorf("%d partitions, %v", len(status), err)
	}
	if err := endpoint.Upkeep(t.Context()); err == nil || !strings.Contains(err.Error(), "works already") {
		t.Errorf("upkeep beside Run: %v", err)
	}
	stop()
	if endpoint.Ready() == nil {
		t.Error("ready while it stops")
	}
	if err := pgtest.Receive(t, patience, "it is done", done); err != nil {
		t.Error(err)
	}
}

// An error of the upkeep ends the consumer too, and Run returns it.
func TestEndpointRunEndsAsAWhole(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	endpoint := r.receiver(samples(t)["GitHub"])
	worker, err := consumer.New(r.recv, endpoint, consumer.HandlerFunc(effect), consumer.Config{Scope: "e"})
	if err != nil {
		t.Fatal(err)
	}
	r.exec(`update onlyonce.rings set horizon = '2 days' where name = 'standard_keys'`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // it ends by itself, long before
	defer cancel()
	if err := worker.Run(ctx); err == nil || !strings.Contains(err.Error(), "Config.Retention") {
		t.Errorf("%v, want Config.Retention", err)
	}
}

// An endpoint that stores nothing is no source, and says so when the consumer is made.
func TestEndpointWithoutStoredEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, c := range []func(*webhook.Config){inline(effect), func(c *webhook.Config) {
		c.Mode = webhook.ForwardOnly
		c.Forward = &webhook.Forward{Sink: "s", Target: "/t"}
	}} {
		x := r.receiver(samples(t)["Stripe"], c)
		if _, err := consumer.New(r.recv, x, consumer.HandlerFunc(effect), consumer.Config{Scope: "e"}); err == nil ||
			!strings.Contains(err.Error(), "Config.Mode is not Stored") {
			t.Errorf("%v", err)
		}
	}
}

// Healthy says since when no event was stored, until one is.
func TestEndpointThatCannotStore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	endpoint := r.receiver(samples(t)["Stripe"])
	e := r.serveMux(samples(t)["Stripe"], endpoint, "")
	r.exec(`alter table onlyonce.streams rename to elsewhere`)
	e.send(stripeBody("evt_0", "")).want(t, 503, false)
	if err := endpoint.Healthy(); err == nil || !strings.Contains(err.Error(), "no event was stored since ") {
		t.Errorf("%v", err)
	}
	r.exec(`alter table onlyonce.elsewhere rename to streams`)
	e.send(stripeBody("evt_0", "")).want(t, 200, false)
	if err := endpoint.Healthy(); err != nil {
		t.Error(err)
	}
}
