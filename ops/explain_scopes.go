package ops

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/reports"
)

// mostScopes is how many scopes are searched for an id.
const mostScopes = 100

// knownScopesSQL lists the scopes of consumers, of webhook endpoints and of queues. In: how many;
// the prefixes of endpoints' scopes and of their streams; the same for queues. Reads the rows of
// scopes, cursors, endpoints and streams, of which there are few.
const knownScopesSQL = `
select scope from onlyonce.scopes
union select scope from onlyonce.cursors
union select $2::text || endpoint from onlyonce.webhook_endpoints
union select $2::text || substr(topic, length($3::text) + 1) from onlyonce.streams where starts_with(topic, $3)
union select $4::text || substr(topic, length($5::text) + 1) from onlyonce.streams where starts_with(topic, $5)
order by scope limit $1`

// find looks for an id in all scopes of consumers and webhook endpoints, and in each topic of a
// scope whose ids count within their topic; among the requests of the HTTP layer; and among the
// events that were set aside. It returns the only question about which something is stored; nil if
// there is none, or several. With the scope of a request it looks for its tenant.
func (r *KeyReport) find(ctx context.Context, tx pgx.Tx, q ExplainQuestion) (*ExplainQuestion, error) {
	var err error
	if r.Scopes, err = knownScopes(ctx, tx); err != nil {
		return nil, err
	}
	if err := r.findRequests(ctx, tx, q); err != nil {
		return nil, err
	}
	if q.Scope != "" {
		r.Scopes = nil
		if len(r.Found) != 1 {
			return nil, nil
		}
		return &r.Found[0], nil
	}
	for _, s := range r.Scopes {
		q.Scope = s
		if err := r.look(ctx, tx, q); err != nil {
			return nil, err
		}
	}
	r.Found = withoutReaders(r.Found)
	if len(r.Found) == 0 {
		q.Scope = ""
		return r.findAside(ctx, tx, q)
	}
	if len(r.Found) != 1 {
		return nil, nil
	}
	r.Scopes = nil
	return &r.Found[0], nil
}

func knownScopes(ctx context.Context, tx pgx.Tx) ([]string, error) {
	return reports.Texts(
		ctx,
		tx,
		knownScopesSQL,
		mostScopes,
		names.WebhookScopes,
		names.WebhookStreams,
		names.QueueScopes,
		names.QueueStreams,
	)
}

// look looks for the id in one scope.
func (r *KeyReport) look(ctx context.Context, tx pgx.Tx, q ExplainQuestion) error {
	row, err := readScope(ctx, tx, q.Scope)
	if err != nil {
		return err
	}
	topics := []string{""}
	if row != nil && row.within() {
		topics = row.Topics
	}
	for _, topic := range topics {
		q.Topic = topic
		at := &KeyReport{Of: q.of()}
		if err := at.Of.resolve(ctx, tx, topic); err != nil {
			return err
		}
		at.Key = at.Of.key().String()
		if endpoint := q.endpoint(); endpoint != "" {
			if err := at.ofSender(ctx, tx, endpoint, q.CountLimit); err != nil {
				return err
			}
		}
		is, err := at.stored(ctx, tx, at.Key, q.CountLimit)
		if err != nil {
			return err
		}
		if is {
			r.Found = append(r.Found, q)
		}
	}
	return nil
}
