package consumer_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Every fault of a configuration is named at once, with its field and its rule.
func TestEveryFaultOfAConfigIsNamed(t *testing.T) {
	t.Parallel()
	_, err := consumer.New(nil, nil, consumer.HandlerFunc(nil), consumer.Config{
		BatchSize: -1,
		Linger:    -time.Second,
		Backoff:   dedupe.Backoff{Min: time.Minute, Max: time.Second},
		Timeouts:  dedupe.Timeouts{Lock: time.Microsecond},
	})
	for _, want := range []string{
		"pool:", "source:", "handler:", "Config.Scope:", "Config.Key:", "Config.BatchSize:",
		"Config.Linger:", "Config.Backoff.Max:", "Config.Timeouts.Lock:",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no word of %s in:\n%v", want, err)
		}
	}
	if !errors.Is(err, consumer.ErrConfig) {
		t.Errorf("%v is no ErrConfig", err)
	}
}

// S5: a consumer that claims ids itself does not do so in the scope of an endpoint or a queue.
func TestS5ScopeOfAReceiver(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	src := &memlog.Source{Log: memlog.NewLog("orders", 1), GroupID: "stock"}
	for scope, want := range map[string]bool{"queue/orders": true, "webhook/stripe": true, "queue": false, "webhooks/x": false} {
		_, err := consumer.New(pool, src, consumer.HandlerFunc(effect), consumer.Config{Scope: scope, Key: consumer.HeaderKey("id")})
		if got := err != nil && strings.Contains(err.Error(), "Config.Scope"); got != want {
			t.Errorf("scope %q: %v", scope, err)
		}
	}
}

// A key function that was made with a bad argument is refused before it parks a whole topic.
func TestMisbuiltKeyFunctionsAreRefused(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	src := &memlog.Source{Log: memlog.NewLog("orders", 1), GroupID: "stock"}
	for want, key := range map[string]consumer.KeyFunc{
		"begin with '/'":         consumer.JSONKey("order/id"),
		"name must not be empty": consumer.HeaderKey(""),
		"":                       consumer.JSONKey("/order/id"),
	} {
		_, err := consumer.New(pool, src, consumer.HandlerFunc(effect), consumer.Config{Scope: "stock", Key: key})
		if (want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	_, err := consumer.New(pool, src, consumer.HandlerFunc(effect), consumer.Config{
		Scope: "stock",
		Key:   func(m *consumer.Message) (string, error) { return string(m.Headers[3].Value), nil },
	})
	if err != nil {
		t.Errorf("a function that does not expect an empty message: %v", err)
	}
}

// Run says what is wrong with the database before it joins the group.
func TestRunRefusesADatabaseThatDoesNotFit(t *testing.T) {
	t.Parallel()
	src := &memlog.Source{Log: memlog.NewLog("orders", 1), GroupID: "stock"}
	run := func(pool *pgxpool.Pool) error {
		c, err := consumer.New(pool, src, consumer.HandlerFunc(effect), testConfig())
		if err != nil {
			t.Fatal(err)
		}
		return c.Run(t.Context())
	}
	if err := run(pgtest.Empty(t)); !errors.Is(err, migrations.ErrSchema) || !strings.Contains(err.Error(), "onlyonce migrate") {
		t.Errorf("no schema: %v", err)
	}
	newer := pgtest.DB(t)
	if _, err := newer.Exec(t.Context(), `insert into onlyonce.schema_version (version) values ($1)`, migrations.Latest+2); err != nil {
		t.Fatal(err)
	}
	if err := run(newer); !errors.Is(err, migrations.ErrSchema) || !strings.Contains(err.Error(), "too new") {
		t.Errorf("newer schema: %v", err)
	}
	away, err := pgxpool.New(context.Background(), "postgres://127.0.0.1:1/orders?connect_timeout=2")
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	if err := run(away); err == nil || !strings.Contains(err.Error(), `127.0.0.1:1, database "orders"`) {
		t.Errorf("unreachable: %v", err)
	}
	if offset, _ := src.Log.Committed("stock", 0); offset != -1 {
		t.Error("the group was joined all the same")
	}
}
