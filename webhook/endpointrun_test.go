package webhook_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
)

// An endpoint with a handler applies what it stores, and its requests wake its consumer: a poll
// would come after the test's end.
func TestEndpointAppliesWhatItStores(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := samples(t)["Stripe"]
	endpoint := r.receiver(s, func(c *webhook.Config) {
		c.Handler = effect
		c.Consumer = consumer.Config{Linger: time.Millisecond}
		c.Source = webhook.SourceConfig{PollInterval: time.Hour}
	})
	mux := http.NewServeMux()
	mux.Handle("/hooks", endpoint)
	e := r.serveMux(s, mux, "/hooks")
	e.send(stripeBody("evt_0", "")).want(t, 200, false) // requests are served without Run
	if err := endpoint.Ready(); err == nil || !strings.Contains(err.Error(), "not ready") {
		t.Errorf("Ready before Run: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- endpoint.Run(ctx) }()
	r.until("what was stored before is applied", func() bool { return r.count("effects") == 1 })
	e.send(stripeBody("evt_1", "")).want(t, 200, false)
	e.send(stripeBody("evt_1", "")).want(t, 200, true)
	r.until("the new event is applied", func() bool { return r.count("effects") == 2 })
	r.until("it is ready", func() bool { return endpoint.Ready() == nil })
	if err := endpoint.Healthy(); err != nil {
		t.Error(err)
	}
	status, err := endpoint.Consumer().Status(t.Context())
	if err != nil || len(status) != 4 {
		t.Errorf("%d partitions, %v", len(status), err)
	}
	if got := one[string](r, `select string_agg(distinct scope, ' ') from onlyonce.cursors`); got != webhook.Scope("e") {
		t.Errorf("scopes %s", got)
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
	endpoint := r.receiver(samples(t)["GitHub"], func(c *webhook.Config) { c.Handler = effect })
	r.exec(`update onlyonce.rings set horizon = '2 days' where name = 'standard_keys'`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // it ends by itself, long before
	defer cancel()
	if err := endpoint.Run(ctx); err == nil || !strings.Contains(err.Error(), "Config.Retention") {
		t.Errorf("%v, want Config.Retention", err)
	}
}

// The faults of the consumer and of the source are the endpoint's, and name their field.
func TestEndpointConsumerFaults(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := samples(t)["Stripe"]
	for want, cfg := range map[string]webhook.Config{
		"Config.Consumer: ":          {Consumer: consumer.Config{BatchSize: -1}},
		"SourceConfig.PollInterval:": {Source: webhook.SourceConfig{PollInterval: 1}},
	} {
		cfg.Name, cfg.Provider, cfg.Secrets, cfg.Handler = "e", s.provider, []string{s.secret}, effect
		if _, err := webhook.New(r.pool, cfg); !errors.Is(err, webhook.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if x := r.receiver(s, inline(effect)); x.Consumer() != nil {
		t.Error("an inline endpoint has a consumer")
	}
}
