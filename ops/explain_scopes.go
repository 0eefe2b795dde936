package ops

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
)

// mostScopes is in how many scopes an id is looked for.
const mostScopes = 100

// knownScopesSQL lists the scopes of consumers and of webhook endpoints. In: how many. Reads the
// rows of scopes, cursors, endpoints and streams, of which there are few.
const knownScopesSQL = `
select scope from onlyonce.scopes
union select scope from onlyonce.cursors
union select 'webhook/' || endpoint from onlyonce.webhook_endpoints
union select 'webhook/' || substr(topic, 9) from onlyonce.streams where starts_with(topic, 'webhook.')
order by scope limit $1`

// IDQuestion is the input of [FindID].
type IDQuestion struct {
	ID         string        // required
	Tenant     string        // of the id; empty: none
	CountLimit time.Duration // for how long each endpoint's webhooks may be searched; 0: 5 s
}

// IDPlaces is the result of [FindID].
type IDPlaces struct {
	Found []KeyQuestion `json:"found" doc:"questions for ExplainKey about which something is stored"`
	Tried []string      `json:"tried" doc:"the scopes that were looked into, at most 100"`
}

// FindID looks for an id in all existing scopes of consumers and webhook endpoints, but not among
// HTTP requests. It reads as much as [ExplainKey] for each scope, and for each topic of a scope
// whose ids count within their topic.
func FindID(ctx context.Context, db DB, q IDQuestion) (*IDPlaces, error) {
	if q.ID == "" {
		return nil, failf(ErrInvalid, "the key must not be empty")
	}
	p := &IDPlaces{Found: []KeyQuestion{}, Tried: []string{}}
	err := reports.Snapshot(ctx, db, func(tx pgx.Tx) error {
		scopes, err := knownScopes(ctx, tx)
		if err != nil {
			return err
		}
		p.Tried = scopes
		for _, s := range scopes {
			if err := p.look(ctx, tx, KeyQuestion{ID: q.ID, Scope: s, Tenant: q.Tenant, CountLimit: q.CountLimit}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

func knownScopes(ctx context.Context, tx pgx.Tx) ([]string, error) {
	type one struct{ Scope string }
	rows, err := reports.Collect[one](ctx, tx, knownScopesSQL, mostScopes)
	scopes := []string{}
	for _, r := range rows {
		scopes = append(scopes, r.Scope)
	}
	return scopes, err
}

// look looks for the id in one scope.
func (p *IDPlaces) look(ctx context.Context, tx pgx.Tx, q KeyQuestion) error {
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
		r := &KeyReport{Of: q.of()}
		if err := r.Of.resolve(ctx, tx, topic); err != nil {
			return err
		}
		r.Key = r.Of.key().String()
		if endpoint := q.endpoint(); endpoint != "" {
			if err := r.ofSender(ctx, tx, endpoint, q.CountLimit); err != nil {
				return err
			}
		}
		is, err := r.stored(ctx, tx, r.Key, q.CountLimit)
		if err != nil {
			return err
		}
		if is {
			p.Found = append(p.Found, q)
		}
	}
	return nil
}

// Command returns the command that explains the key, for a POSIX shell.
func (q *KeyQuestion) Command() string {
	words := []string{"onlyonce", "explain"}
	for _, f := range [][2]string{{"-scope", q.Scope}, {"-tenant", q.Tenant}, {"-topic", q.Topic}, {"-provider", q.Provider}} {
		if f[1] != "" {
			words = append(words, f[0], show.Quote(f[1]))
		}
	}
	return strings.Join(append(words, "--", show.Quote(q.Key+q.ID)), " ")
}
