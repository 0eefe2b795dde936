package ops

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/reports"
)

// idsOfEndpoints finds each endpoint that has ids of webhooks; its last row is null. By the index
// webhook_ids_age, one look for each.
const idsOfEndpoints = `
with recursive of_ids as (
  (select w.endpoint from onlyonce.webhook_ids w order by w.endpoint limit 1)
  union all
  select (select w.endpoint from onlyonce.webhook_ids w where w.endpoint > o.endpoint order by w.endpoint limit 1)
    from of_ids o where o.endpoint is not null)`

// webhookSQL finds when a receiver claimed a key. In: key, from when, until when (null: any). By
// the index webhook_ids_age within each endpoint; if no segment bounds the time it reads all, hence
// a limit.
const webhookSQL = idsOfEndpoints + `
select w.endpoint, w.seen_at as claimed_at
  from of_ids o join onlyonce.webhook_ids w on w.endpoint = o.endpoint
 where w.key = $1
   and w.seen_at >= coalesce($2::timestamptz, '-infinity')
   and w.seen_at <= coalesce($3::timestamptz, 'infinity')
 order by w.seen_at`

// providers are those of package webhook. Others name themselves (webhook.HMAC).
var providers = []string{"github", "shopify", "slack", "standard", "stripe"}

// providersSQL finds providers of an endpoint by what is stored of it: an event's id is
// endpoint/provider/id. In: endpoint, scope. Of the stream the latest 1,000 events of each
// partition, by the unique index of each segment; of what is parked by the index parked_position.
const providersSQL = `
select distinct split_part(i.id, '/', 2) as provider
  from (select e.id from onlyonce.streams s cross join generate_series(0, s.partitions - 1) n
         cross join lateral (select l.id
                               from onlyonce.event_log l
                              where l.stream = s.id and l.partition = n order by l."offset" desc limit 1000) e
         where s.topic = '` + names.WebhookStreams + `' || $1::text
        union all select p.event_id from onlyonce.parked p where p.kind = 'event' and p.scope = $2) i(id)
 where starts_with(i.id, $1::text || '/') and split_part(i.id, '/', 2) <> ''`

// ofSender turns the sender's id of a webhook into the one that its receiver claims:
// endpoint/provider/id. What is stored shows which provider it is; if nothing of it is stored, the
// answer is about the id as it was given.
func (r *KeyReport) ofSender(ctx context.Context, tx pgx.Tx, endpoint string, limit time.Duration) error {
	if strings.HasPrefix(r.Of.ID, endpoint+"/") {
		return nil // it is in that form
	}
	found, err := reports.Texts(ctx, tx, providersSQL, endpoint, r.Of.Scope)
	if err != nil {
		return err
	}
	all := slices.Concat(providers, found)
	slices.Sort(all)
	all = slices.Compact(all)
	for _, p := range all {
		of := *r.Of
		of.ID = endpoint + "/" + p + "/" + r.Of.ID
		key := of.key().String()
		is, err := r.stored(ctx, tx, key, limit)
		if err != nil {
			return err
		}
		if is {
			r.Key = key
			r.Of = &of
			return nil
		}
	}
	if is, err := r.stored(ctx, tx, r.Key, limit); is || err != nil {
		return err
	}
	r.NotKnown = append(
		r.NotKnown,
		fmt.Sprintf("whether it came from another provider than %s: name it with -provider", strings.Join(all, ", ")),
	)
	return nil
}

// stored reports whether anything is stored under a webhook's key.
func (r *KeyReport) stored(ctx context.Context, tx pgx.Tx, key string, limit time.Duration) (bool, error) {
	claims, err := reports.Collect[claimRow](ctx, tx, claimsSQL, key)
	if err != nil || len(claims) > 0 {
		return len(claims) > 0, err
	}
	parked, _, err := reports.Parked[ParkedRow](ctx, tx, reports.ParkedFilter{Key: key, Limit: 1})
	if err != nil || len(parked) > 0 {
		return len(parked) > 0, err
	}
	var noted KeyReport
	err = noted.readWebhooks(ctx, tx, limit, key, nil, nil)
	return len(noted.Webhooks) > 0, err
}

// readWebhooks finds the endpoints that have recorded a key. They are nil if that took too long.
func (r *KeyReport) readWebhooks(
	ctx context.Context,
	tx pgx.Tx,
	limit time.Duration,
	key string,
	after, before *time.Time,
) error {
	return reports.IntoWithin(ctx, tx, limit, &r.Webhooks, webhookSQL, key, after, before)
}
