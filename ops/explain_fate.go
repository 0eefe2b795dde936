package ops

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/reports"
)

// mostPlaces is up to how many pairs of a tenant and a scope are tried for an Idempotency-Key.
const mostPlaces = 10_000

// requestPlacesSQL lists where requests came with a key. In: tenant, scope (null: any), how many.
// The key itself is not kept, so it is hashed with each of them. Reads onlyonce.http_records whole,
// hence a limit of time.
const requestPlacesSQL = `
select distinct tenant, scope from onlyonce.http_records
 where ($1::text is null or tenant = $1) and ($2::text is null or scope = $2 or starts_with(scope, $2 || ' ')) limit $3`

// requestsByKeysSQL finds the requests that have one of these ids. In: ids. By the primary key.
const requestsByKeysSQL = `select id::text from onlyonce.http_records where id = any ($1::uuid[])`

type requestPlace struct{ Tenant, Scope string }

// findRequests looks for an Idempotency-Key among the tenants and scopes of all requests, and adds
// the questions that find it.
func (r *KeyReport) findRequests(ctx context.Context, tx pgx.Tx, q ExplainQuestion) error {
	places, err := reports.CollectWithin[requestPlace](
		ctx,
		tx,
		q.CountLimit,
		requestPlacesSQL,
		reports.OrNull(q.Tenant),
		reports.OrNull(q.Scope),
		mostPlaces+1,
	)
	if err != nil {
		return err
	}
	if places == nil || len(places) > mostPlaces {
		r.NotKnown = append(r.NotKnown, "whether it is the Idempotency-Key of a request: there are too many "+
			"requests to search; choose one with -scope and -tenant")
		return nil
	}
	found := map[string]ExplainQuestion{}
	var ids []string
	for _, p := range places {
		of := ExplainQuestion{ID: q.ID, Tenant: p.Tenant, Scope: p.Scope, CountLimit: q.CountLimit}
		id := of.of().key().String()
		found[id] = of
		ids = append(ids, id)
	}
	known, err := reports.Texts(ctx, tx, requestsByKeysSQL, ids)
	for _, id := range known {
		r.Found = append(r.Found, found[id])
	}
	return err
}

// asideSQL finds the events that were set aside under an id, whatever their key. In: ids as they
// are stored, how many. By the index parked_event.
const asideSQL = reports.ParkedRow + `p.event_id = any ($1::text[]) order by p.id desc limit $2`

// readAside reads the parked rows of an event's id: of a queue's message, or of a webhook's with
// the endpoint and the provider before it.
func (r *KeyReport) readAside(ctx context.Context, tx pgx.Tx, q ExplainQuestion) error {
	if r.Of == nil {
		return nil
	}
	last := r.Of.ID[strings.LastIndex(r.Of.ID, "/")+1:]
	ids := []string{r.Of.ID}
	endpoints, err := reports.Texts(
		ctx,
		tx,
		knownScopesSQL,
		mostScopes,
		names.WebhookScopes,
		names.WebhookStreams,
		names.QueueScopes,
		names.QueueStreams,
	)
	if err != nil {
		return err
	}
	for _, scope := range endpoints {
		endpoint := names.EndpointOf(scope)
		if endpoint == "" || q.Scope != "" && q.Scope != scope {
			continue
		}
		found, err := reports.Texts(ctx, tx, providersSQL, endpoint, scope)
		if err != nil {
			return err
		}
		for _, p := range slices.Concat(providers, found) {
			ids = append(ids, endpoint+"/"+p+"/"+last)
		}
	}
	rows, err := reports.Collect[ParkedRow](ctx, tx, asideSQL, ids, reports.ExplainLimit)
	if err != nil {
		return err
	}
	for _, row := range rows {
		if !slices.ContainsFunc(r.Parked, func(p ParkedRow) bool { return p.ID == row.ID }) {
			r.Parked = append(r.Parked, row)
		}
	}
	return nil
}

// readEvents finds the stored events that have the id, with what became of them. They are nil if
// that took too long: the log has no index of ids.
func (r *KeyReport) readEvents(ctx context.Context, tx pgx.Tx, limit time.Duration) error {
	r.Events = []reports.Event{}
	if r.Of == nil ||
		len(r.Claims) == 0 ||
		!slices.ContainsFunc(
			[]string{names.WebhookScopes, names.QueueScopes},
			func(of string) bool { return strings.HasPrefix(r.Of.Scope, of) },
		) {
		return nil
	}
	topic := ""
	if endpoint := names.EndpointOf(r.Of.Scope); endpoint != "" {
		topic = names.WebhookStream(endpoint)
	} else {
		topic = names.QueueStream(strings.TrimPrefix(r.Of.Scope, names.QueueScopes))
	}
	var err error
	r.Events, err = reports.EventsOfID(ctx, tx, limit, topic, r.Of.ID)
	if r.Events == nil {
		r.NotKnown = append(r.NotKnown, "whether its consumer has applied it: looking for the event took too long")
	}
	return err
}

// findAside looks for an id that is stored only in rows that were set aside, and returns the
// question about the scope in which that was; nil: nothing was.
func (r *KeyReport) findAside(ctx context.Context, tx pgx.Tx, q ExplainQuestion) (*ExplainQuestion, error) {
	if err := r.readAside(ctx, tx, q); err != nil || len(r.Parked) == 0 {
		return nil, err
	}
	q.Scope = r.Parked[0].Scope
	r.Parked = nil // they are read again
	r.Scopes = nil
	return &q, nil
}

// withoutReaders leaves out the consumers of a stream whose receiver is found too: what they have
// parked is the receiver's event.
func withoutReaders(found []ExplainQuestion) []ExplainQuestion {
	streams := map[string]bool{}
	for _, q := range found {
		if endpoint := q.endpoint(); endpoint != "" {
			streams[names.WebhookStream(endpoint)] = true
		} else if queue, is := strings.CutPrefix(q.Scope, names.QueueScopes); is {
			streams[names.QueueStream(queue)] = true
		}
	}
	return slices.DeleteFunc(found, func(q ExplainQuestion) bool { return q.Topic != "" && streams[q.Topic] })
}
