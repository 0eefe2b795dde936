package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
)

type unusedSink struct{ outbox.Sink }

func (unusedSink) Name() string { return "payments" }

func (unusedSink) Limits() outbox.Limits {
	return outbox.Limits{KeyWindow: outbox.Forever, Timeout: time.Second}
}

// S1: databases that speak PostgreSQL's protocol and keep none of the promises are refused by name,
// by each engine at its start, by migrate, by doctor and by what else operators ask.
func TestS1ServersThatAreNotPostgreSQL(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		version string
		dsql    bool
		because string
	}{
		"CockroachDB": {
			"CockroachDB CCL v24.3.10 (x86_64-pc-linux-gnu, built 2025/04/09 18:19:05, go1.22.8 X:nocoverageredesign)",
			false,
			"advisory locks do nothing",
		},
		"YugabyteDB": {
			"PostgreSQL 15.2-YB-2.25.0.0-b0 on aarch64-unknown-linux-gnu, compiled by clang version 17.0.6, 64-bit",
			false,
			"its snapshots are times",
		},
		"Aurora DSQL": {"PostgreSQL 16", true, "no triggers"},
	} {
		t.Run(name, func(t *testing.T) {
			url := pgtest.Impostor(t, c.version, c.dsql)
			wants := []string{"the server is " + name + " (" + c.version + ")", c.because, "use PostgreSQL"}
			for _, command := range []string{"migrate", "doctor", "status", "cursor pause -scope stock -reason x -yes"} {
				session{t: t, url: url}.run(strings.Fields(command)...).want(t, statusEnvironment, wants...)
			}
			for engine, run := range engines(t, url) {
				err := run(t.Context())
				for _, want := range wants {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("%s: %v, want %q in it", engine, err, want)
					}
				}
			}
		})
	}
}

// engines returns the Run of one engine of each kind on a database.
func engines(t *testing.T, url string) map[string]func(context.Context) error {
	t.Helper()
	pool := pgtest.Pool(t, url)
	log := memlog.NewLog("orders", 1)
	handle := func(context.Context, consumer.Tx, *consumer.Message) error { return nil }
	c, err := consumer.New(
		pool,
		&memlog.Source{Log: log, GroupID: "g"},
		consumer.HandlerFunc(handle),
		consumer.Config{Scope: "stock", PositionsOnly: true},
	)
	if err != nil {
		t.Fatal(err)
	}
	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{Sinks: []outbox.Sink{unusedSink{}}})
	if err != nil {
		t.Fatal(err)
	}
	endpoint, err := webhook.New(pool, webhook.Config{
		Name:     "github",
		Provider: webhook.GitHub{},
		Secrets:  []string{"It's a Secret to Everybody"},
	})
	if err != nil {
		t.Fatal(err)
	}
	layer, err := idempotency.New(pool, idempotency.Config{
		Scope:           idempotency.GlobalScope(),
		FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {1}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return map[string]func(context.Context) error{"consumer": c.Run, "relay": relay.Run, "endpoint": endpoint.Upkeep, "layer": layer.Run}
}
