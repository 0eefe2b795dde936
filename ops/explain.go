package ops

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// KeyQuestion names one message, webhook, call or request: by its stored key, or by its id.
type KeyQuestion struct {
	// Key is a stored key, a UUID. For a call it is the idempotency key that the remote saw. If it
	// is empty, Scope and ID name the key.
	Key string

	// Scope is the consumer's scope, "webhook/ENDPOINT" for a webhook, or "http METHOD PATTERN" for
	// a request, for example "http POST /v1/charges". If it is empty, the ID is looked for in the
	// scopes of all consumers and webhook endpoints, at most 100.
	Scope string

	// ID is the id of the message or webhook, or the Idempotency-Key of the request.
	ID string

	// Tenant is the tenant of the id. Empty: none.
	Tenant string

	// Topic is the message's topic, if ids count within their topic (consumer.Config.Copies).
	// Defaults to the only topic of the scope.
	Topic string

	// Provider is the sender of the webhook, if it is your own provider without stored events.
	// Defaults to the one known for the endpoint.
	Provider string

	// Replay is the replay in which the key was claimed. 0: none.
	Replay int32

	// CountLimit bounds the search of webhooks. Defaults to 5 seconds.
	CountLimit time.Duration
}

// KeyReport is the database's state of one key, and its consequences for copies.
type KeyReport struct {
	Key string `json:"key" doc:"as stored"`
	Of  *KeyOf `json:"of" doc:"the id that it was made of; nil: only the stored key was given"`

	// Claimed: a ring remembers the key.
	Claimed bool `json:"claimed"`
	// Copies has the outcome of a copy that arrives now, for each ring.
	Copies    []Copy     `json:"copies"`
	Claims    []Claim    `json:"claims" doc:"the segments that hold the key"`
	FirstSeen *FirstSeen `json:"first_seen" doc:"when the key was claimed first, as far as the rings remember. Nil: no segment holds it"`
	// Age compares the id's own time with what its scope has forgotten. Nil: the id has no time, or
	// is none of a consumer.
	Age *struct {
		MadeAt      time.Time  `json:"made_at" doc:"as the id has it (a UUIDv7 or a ULID)"`
		TooOldUntil *time.Time `json:"too_old_until" doc:"the time until which ids of the scope may be forgotten. Nil: none are"`
		// TooOld: a message with the id, if it is no duplicate, may be a copy whose key is
		// forgotten.
		TooOld bool `json:"too_old"`
	} `json:"age"`
	Webhooks []struct {
		Endpoint  string    `json:"endpoint"`
		ClaimedAt time.Time `json:"claimed_at"`
	} `json:"webhooks" doc:"the endpoints that have recorded the key. It is nil if the search took longer than CountLimit"`
	Calls   []ExplainedCall `json:"calls" doc:"calls that the claiming transaction enqueued, at most 100"`
	Call    []StoredCall    `json:"call" doc:"where the call is stored, if the key is a call's"`
	Parked  []ParkedItem    `json:"parked" doc:"rows that are parked under the key, newest first, at most 100"`
	Request *Request        `json:"request" doc:"the HTTP request, if the key is a request's"`
	// Memory says how long the rings remember keys.
	Memory []RingMemory `json:"memory"`
	// Scopes are those of consumers and webhook endpoints, at most 100, if the id's scope is not
	// one of them and has no stored rows: it may be mistyped. Also if no Scope was given, and rows
	// of the ID are stored in none or in several of them: Key is then empty. Otherwise nil.
	Scopes []string `json:"scopes"`
	// Found are questions about the scopes in which something is stored of an ID without a Scope.
	Found []KeyQuestion `json:"-"`
	// NotKnown lists the open points of the answer, a sentence each.
	NotKnown []string `json:"not_known"`

	callless bool // a claim's transaction is known, and no call of it
}

// KeyOf is the input of a key's hash.
type KeyOf struct {
	Tenant string `json:"tenant"`
	Scope  string `json:"scope"`
	Topic  string `json:"topic" doc:"empty: the id counts for the whole scope"`
	ID     string `json:"id"`
	Replay int64  `json:"replay" doc:"0: none"`
}

// RingMemory is how long a ring of keys remembers.
type RingMemory struct {
	Ring        string   `json:"ring"`
	Horizon     *float64 `json:"horizon_seconds" doc:"nil: for ever"`
	CompleteFor float64  `json:"complete_for_seconds" doc:"for how long it has held every key"`
}

// ExplainKey returns the database's state of a key, on one snapshot. If ids count within their
// topic and the scope has several, the error is ErrInvalid unless the question names one.
//
// It reads one row of each segment of the rings of keys, at most 100 calls of each claiming
// transaction, and the rows stored under the key by their indexes. It searches webhooks among the
// ids of the claim's time, or among all if that time is unbounded, for at most CountLimit.
func ExplainKey(ctx context.Context, db DB, q KeyQuestion) (*KeyReport, error) {
	if err := q.Check(); err != nil {
		return nil, err
	}
	r := &KeyReport{Of: q.of(), Claims: []Claim{}, Calls: []ExplainedCall{}, NotKnown: []string{}}
	if key, err := uuid.Parse(q.Key); err == nil {
		r.Key = key.String()
	}
	if err := reports.Snapshot(ctx, db, func(tx pgx.Tx) error {
		if r.Of != nil && q.Scope == "" {
			only, err := r.find(ctx, tx, q)
			if only == nil {
				return err
			}
			q = *only
			r.Of = q.of()
		}
		if r.Of != nil {
			if err := r.Of.resolve(ctx, tx, q.Topic); err != nil {
				return err
			}
			r.Key = r.Of.key().String()
			if err := r.readAge(ctx, tx); err != nil {
				return err
			}
			if endpoint := q.endpoint(); endpoint != "" && q.Provider == "" {
				if err := r.ofSender(ctx, tx, endpoint, q.CountLimit); err != nil {
					return err
				}
			}
		}
		return r.read(ctx, tx, q.CountLimit)
	}); err != nil {
		return nil, err
	}
	return r, nil
}

// Check returns an error of kind ErrInvalid unless the fields go together.
func (q *KeyQuestion) Check() error {
	switch {
	case q.Key == "" && q.ID == "":
		return failf(ErrInvalid, "the key must not be empty")
	case q.Key != "" && q.ID != "":
		return failf(ErrInvalid, "a stored key and an id: ask for one of the two")
	case q.Scope == "" && (q.Topic != "" || q.Replay != 0):
		return failf(ErrInvalid, "missing: `Scope`: it goes with `Topic` and `Replay`")
	case q.Provider != "" && q.endpoint() == "":
		return failf(ErrInvalid, "`Provider` goes with `Scope` webhook/ENDPOINT")
	}
	if q.Key != "" {
		if _, err := uuid.Parse(q.Key); err != nil {
			return failf(ErrInvalid, "%q is no UUID, and so no stored key: say whose id it is with `Scope`", q.Key)
		}
	}
	return nil
}

// of is the id that is asked for; nil if it is a stored key.
func (q *KeyQuestion) of() *KeyOf {
	if q.ID == "" {
		return nil
	}
	of := &KeyOf{Tenant: q.Tenant, Scope: q.Scope, ID: q.ID, Replay: int64(q.Replay)}
	if q.Provider != "" {
		of.ID = q.endpoint() + "/" + q.Provider + "/" + q.ID
	}
	return of
}

// endpoint is the endpoint whose webhooks are asked for, "" if none.
func (q *KeyQuestion) endpoint() string {
	endpoint, is := strings.CutPrefix(q.Scope, "webhook/")
	if !is {
		return ""
	}
	return endpoint
}

// key is the stored form of the id.
func (o *KeyOf) key() uuid.UUID {
	return dedupe.Key{Tenant: o.Tenant, Scope: o.Scope, Topic: o.Topic, ID: o.ID, Replay: int32(o.Replay)}.Hash()
}

// resolve finds out whether the id counts within a topic, and within which.
func (o *KeyOf) resolve(ctx context.Context, tx pgx.Tx, topic string) error {
	row, err := readScope(ctx, tx, o.Scope)
	switch {
	case err != nil || row == nil || !row.within():
		return err
	case topic == "" && len(row.Topics) == 1:
		topic = row.Topics[0]
	case topic == "":
		return failf(ErrInvalid, "ids of scope %s count within their topic", o.Scope).but("say with `Topic` which (%s)", strings.Join(row.Topics, ", "))
	}
	if topic != row.FirstTopic {
		o.Topic = topic
	}
	return nil
}

func (r *KeyReport) read(ctx context.Context, tx pgx.Tx, limit time.Duration) error {
	claims, err := reports.Collect[claimRow](ctx, tx, claimsSQL, r.Key)
	if err != nil {
		return err
	}
	var after, before *time.Time // of a webhook's claim
	seen := map[int64]bool{}
	for i := range claims {
		c := claims[i].claim()
		r.Claims = append(r.Claims, c)
		r.Claimed = r.Claimed || c.Remembered
		if c.Ring == ring.StandardKeys().Name {
			after, before = c.ClaimedAfter, c.ClaimedBefore
		}
		if c.Transaction == nil || seen[c.Transaction.Xid] {
			continue
		}
		seen[c.Transaction.Xid] = true
		calls, err := callsOf(ctx, tx, c.Transaction)
		if err != nil {
			return err
		}
		r.callless = r.callless || len(calls) == 0
		r.Calls = append(r.Calls, calls...)
	}
	r.FirstSeen = firstSeen(r.Claims)
	if err := r.readCopies(ctx, tx); err != nil {
		return err
	}
	for i := range r.Calls {
		r.Calls[i].derive(r.Of)
	}
	derivedFirst(r.Calls)
	if err = r.readWebhooks(ctx, tx, limit, r.Key, after, before); err != nil {
		return err
	}
	if r.Call, err = readStored(ctx, tx, r.Key); err != nil {
		return err
	}
	if r.Parked, _, err = readParked(ctx, tx, reports.ParkedFilter{Key: r.Key, Limit: reports.ExplainLimit}); err != nil {
		return err
	}
	requests, _, err := readRequests(ctx, tx, reports.RequestFilter{All: true, ID: r.Key, Limit: 1})
	if err != nil {
		return err
	}
	if len(requests) > 0 {
		r.Request = &requests[0]
	}
	if r.Memory, err = readMemory(ctx, tx); err != nil {
		return err
	}
	r.leaveOpen()
	return r.readScopes(ctx, tx)
}

// readScopes reads the scopes there are, unless the question's scope is one of them or something is
// stored. Any scope may be one of dedupe.Claim, of which no row says that it exists.
func (r *KeyReport) readScopes(ctx context.Context, tx pgx.Tx) error {
	if r.Of == nil || strings.HasPrefix(r.Of.Scope, "http ") || len(r.Claims)+len(r.Webhooks)+len(r.Call)+len(r.Parked) > 0 || r.Request != nil {
		return nil
	}
	scopes, err := knownScopes(ctx, tx)
	if !slices.Contains(scopes, r.Of.Scope) {
		r.Scopes = scopes
	}
	return err
}

// leaveOpen adds what the answer does not know.
func (r *KeyReport) leaveOpen() {
	open := func(format string, args ...any) { r.NotKnown = append(r.NotKnown, fmt.Sprintf(format, args...)) }
	if len(r.Claims) == 0 {
		open("whether the key was claimed before what the rings remember, or by a transaction that has not committed")
	}
	if len(r.Claims) > 0 {
		open("at which position the message stood: a key is not stored with one")
	}
	for _, c := range r.Calls {
		if c.Derived == nil {
			open("which of the transaction's calls this message asked for, where derived is not yes: a batch is one transaction, and Call.ID is hashed")
			break
		}
	}
	if r.callless {
		// A call has the number of the transaction, and a row that of the savepoint in which it was
		// written. Nothing leads from one to the other.
		open("which calls the transaction enqueued, if it claimed the key within a savepoint: the claim bears the savepoint's number then, and calls bear the transaction's")
	}
	if len(r.Claims) > 0 {
		open("calls that another transaction enqueued for it, such as a replay, and calls whose segment of the log was emptied")
	}
	if r.Webhooks == nil {
		open("whether a webhook's receiver noted it: looking took too long")
	}
}

// readMemory reads since when the rings hold every key. A segment is emptied whole, so they do
// since the oldest of those that are asked was opened.
func readMemory(ctx context.Context, tx pgx.Tx) ([]RingMemory, error) {
	rings, err := reports.KeyRings(ctx, tx)
	if err != nil {
		return nil, err
	}
	var all []RingMemory
	for _, k := range rings {
		m := RingMemory{Ring: k.Ring, Horizon: k.Horizon}
		for _, s := range k.Segments {
			if s.State != "current" && s.State != "draining" && s.State != "closed" {
				continue
			}
			if s.Opened != nil {
				m.CompleteFor = max(m.CompleteFor, *s.Opened)
			}
		}
		all = append(all, m)
	}
	return all, nil
}
