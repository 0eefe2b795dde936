package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/webhook"
)

// tableSQL makes the handler's table. It has no unique constraint: an event that was applied twice
// would show.
const tableSQL = `create table if not exists webhook_ingest_effects (
  at bigserial,
  endpoint text not null,
  id text not null,
  object text not null,
  version bigint not null
)`

// ingest is the side that receives.
type ingest struct {
	pool *pgxpool.Pool
}

// version says what an event is about and which of two is the later one.
func version(e *webhook.Event) (object string, n int64, err error) {
	var about struct {
		Object  string `json:"object_id"`
		Version int64  `json:"object_version"`
	}
	err = json.Unmarshal(e.Body, &about)
	return about.Object, about.Version, err
}

// handle applies an event. If it returns an error, a worker tries again, or the sender does.
func (in *ingest) handle(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
	e, err := webhook.EventOf(m)
	if err != nil {
		return consumer.Permanent(err)
	}
	object, n, err := version(e)
	if err != nil {
		return consumer.Permanent(err)
	}
	tx.Queue(`insert into webhook_ingest_effects (endpoint, id, object, version) values ($1, $2, $3, $4)`, m.Topic, e.ID, object, n)
	return nil
}

// sender is one provider of webhooks. Without a library of its own, its layout is declared.
type sender struct {
	name   string
	scheme webhook.Provider
	mode   webhook.EndpointMode
	secret string // the environment variable that holds it
}

var senders = []sender{
	{"standard", webhook.Standard{}, webhook.Stored, "STANDARD_SECRET"},
	{"stripe", webhook.Stripe{}, webhook.Stored, "STRIPE_SECRET"},
	{"github", webhook.GitHub{}, webhook.Stored, "GITHUB_SECRET"},
	{"shopify", webhook.Shopify{}, webhook.Inline, "SHOPIFY_SECRET"},
	{"slack", webhook.Slack{}, webhook.Inline, "SLACK_SECRET"},
	{"acme", webhook.HMAC{Name: "acme", SignatureHeader: "X-Acme-Signature", Prefix: "v1=", Time: "X-Acme-Time",
		Layout: "{time}.{body}", IDMember: "id"}, webhook.Stored, "ACME_SECRET"},
}

// receiver is a sender's endpoint, and what runs beside it: the consumer of the stored events, or
// the upkeep of an endpoint that applies them inline.
type receiver struct {
	*webhook.Endpoint
	run func(context.Context) error
}

// receivers makes one for each sender whose secret there is. An event is dropped if a later version
// of the same object was applied.
func (in *ingest) receivers(getenv func(string) string) (map[string]receiver, error) {
	handler, err := webhook.InOrder(webhook.Ordered{Version: version, DropStale: true}, consumer.HandlerFunc(in.handle))
	if err != nil {
		return nil, err
	}
	all := map[string]receiver{}
	for _, s := range senders {
		secret := getenv(s.secret)
		if secret == "" {
			continue
		}
		all[s.name], err = in.receiver(s, secret, handler)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return all, nil
}

func (in *ingest) receiver(s sender, secret string, handler consumer.Handler) (r receiver, err error) {
	cfg := webhook.Config{
		Name:        s.name,
		Provider:    s.scheme,
		Mode:        s.mode,
		Secrets:     []string{secret},
		Partitions:  4,
		OrderingKey: func(e *webhook.Event) string { object, _, _ := version(e); return object },
	}
	if s.mode == webhook.Inline {
		cfg.Handler = handler
	}
	if r.Endpoint, err = webhook.New(in.pool, cfg); err != nil {
		return r, err
	}
	if s.mode == webhook.Inline {
		r.run = r.Upkeep
		return r, nil
	}
	worker, err := consumer.New(in.pool, r.Endpoint, handler, consumer.Config{Scope: webhook.Scope(s.name)})
	if err != nil {
		return r, err
	}
	r.run = worker.Run
	return r, nil
}
