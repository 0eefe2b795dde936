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
  at bigserial, endpoint text not null, id text not null, object text not null, version bigint not null)`

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
	mode   webhook.Mode
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

// endpoints makes an endpoint for each sender whose secret there is. An event is dropped if a later
// version of the same object was applied.
func (in *ingest) endpoints(getenv func(string) string) (map[string]*webhook.Endpoint, error) {
	handler, err := webhook.InOrder(webhook.Ordered{Version: version, DropStale: true}, in.handle)
	if err != nil {
		return nil, err
	}
	all := map[string]*webhook.Endpoint{}
	for _, s := range senders {
		secret := getenv(s.secret)
		if secret == "" {
			continue
		}
		all[s.name], err = webhook.New(in.pool, webhook.Config{
			Name: s.name, Provider: s.scheme, Mode: s.mode, Secrets: []string{secret}, Handler: handler, Partitions: 4,
			OrderingKey: func(e *webhook.Event) string { object, _, _ := version(e); return object },
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return all, nil
}
