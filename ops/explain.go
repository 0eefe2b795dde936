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
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// ExplainQuestion names one message, webhook, call or request for [ExplainKey]: by its stored key,
// or by its id. Or it names a position for [ExplainPosition]: Topic, Partition and Offset are then
// required, and Scope may restrict it to one consumer.
type ExplainQuestion struct {
	// Key is a stored key, a UUID. For a call it is the idempotency key that the remote saw. If it
	// is empty, Scope and ID name the key.
	Key string

	// ID is the id of the message or webhook, or the Idempotency-Key of the request.
	ID string

	// Scope is the consumer's scope, "webhook/ENDPOINT" for a webhook, or "http METHOD PATTERN" for
	// a request, for example "http POST /v1/charges". If it is empty, the ID is looked for in the
	// scopes of all consumers and webhook endpoints, at most 100.
	Scope string

	// Tenant is the tenant of the id. Empty: none.
	Tenant string

	// Topic is the message's topic, if ids count within their topic (consumer.Config.Copies).
	// Defaults to the only topic of the scope.
	Topic string

	// Replay is the replay in which the key was claimed. 0: none.
	Replay int32

	// Provider is the sender of the webhook, if it is your own provider without stored events.
	// Defaults to the one known for the endpoint.
	Provider string

	// Partition and Offset, with Topic, name a position.
	Partition *int32
	Offset    *int64

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
	Copies []Copy  `json:"copies"`
	Claims []Claim `json:"claims" doc:"the segments that hold the key"`
	// FirstSeen is when the key was claimed first, as far as the rings remember. A row of a ring
	// has no time of its own; its segment bounds it. Nil: no segment holds it.
	FirstSeen *FirstSeen `json:"first_seen"`
	// Age compares the id's own time with what its scope has forgotten. Nil: the id has no time, or
	// is none of a consumer.
	Age *IDAge `json:"age"`
	// the endpoints that have recorded the key. It is nil if the search took longer than CountLimit
	Webhooks []EndpointClaim `json:"webhooks" doc:"above"`
	Calls    []ExplainedCall `json:"calls" doc:"calls that the claiming transaction enqueued, at most 100"`
	Call     []Stored        `json:"call" doc:"where the call is stored, if the key is a call's"`
	// rows that are parked under the key, newest first, at most 100; then those of the same event's
	// id under another key, for example because its body differs
	Parked []ParkedRow `json:"parked" doc:"above"`
	// the stored events with the id, of a webhook or a queue; nil: the search took longer than
	// CountLimit
	Events  []reports.Event      `json:"events" doc:"above"`
	Request *Request             `json:"request" doc:"the HTTP request, if the key is a request's"`
	Memory  []reports.RingMemory `json:"memory" doc:"how long the rings remember keys"`
	// Scopes are those of consumers and webhook endpoints, at most 100, if the id's scope is not
	// one of them and has no stored rows: it may be mistyped. Also if no Scope was given, and rows
	// of the ID are stored in none or in several of them: Key is then empty. Otherwise nil.
	Scopes []string `json:"scopes"`
	// Found are questions about the scopes in which something is stored of an ID without a Scope.
	Found []ExplainQuestion `json:"-"`
	// NotKnown lists the open points of the answer, a sentence each.
	NotKnown []string `json:"not_known"`

	callless bool // a claim's transaction is known, and no call of it
}

// EndpointClaim is the claim of a key by a webhook endpoint.
type EndpointClaim struct {
	Endpoint  string    `json:"endpoint"`
	ClaimedAt time.Time `json:"claimed_at"`
}

// IDAge compares an id's own time with what its scope has forgotten.
type IDAge struct {
	MadeAt time.Time `json:"made_at" doc:"as the id has it (a UUIDv7 or a ULID)"`
	// the time until which ids of the scope may be forgotten. Nil: none are
	TooOldUntil *time.Time `json:"too_old_until" doc:"above"`
	// TooOld: a message with the id, if it is no duplicate, may be a copy whose key is
	// forgotten.
	TooOld bool `json:"too_old"`
}

// FirstSeen is when a key was claimed first.
type FirstSeen struct {
	After  *time.Time `json:"after" doc:"nil: not known"`
	Before *time.Time `json:"before" doc:"nil: the segment is open"`
	// the claim's COMMIT; nil: not tracked by Postgres (track_commit_timestamp), or forgotten
	At *time.Time `json:"at" doc:"above"`
}

// KeyOf is the input of a key's hash.
type KeyOf struct {
	Tenant string `json:"tenant"`
	Scope  string `json:"scope"`
	Topic  string `json:"topic" doc:"empty: the id counts for the whole scope"`
	ID     string `json:"id"`
	Replay int64  `json:"replay" doc:"0: none"`
}

// ExplainKey returns the database's state of a key, on one snapshot. If ids count within their
// topic and the scope has several, the error is ErrInvalid unless the question names one.
//
// It reads one row of each segment of the rings of keys, at most 100 calls of each claiming
// transaction, and the rows stored under the key by their indexes. It searches webhooks among the
// ids of the claim's time, or among all if that time is unbounded, for at most CountLimit.
func ExplainKey(ctx context.Context, db DB, q ExplainQuestion) (*KeyReport, error) {
	if err := q.checkKey(); err != nil {
		return nil, err
	}
	r := &KeyReport{Of: q.of(), Claims: []Claim{}, Calls: []ExplainedCall{}, NotKnown: []string{}}
	if key, err := uuid.Parse(q.Key); err == nil {
		r.Key = key.String()
	}
	err := reports.Snapshot(ctx, db, func(tx pgx.Tx) error { return r.explain(ctx, tx, q) })
	if err != nil {
		return nil, err
	}
	if q.Key == "" || r.known() {
		return r, nil
	}
	// Nothing is stored under the UUID: it may be an id that its maker drew, for example the
	// Idempotency-Key of a client.
	asID := q
	asID.Key = ""
	asID.ID = q.Key
	other, err := ExplainKey(ctx, db, asID)
	if err != nil || other.Key == "" && len(other.Found) == 0 {
		return r, err
	}
	return other, nil
}

// known reports whether anything is stored under the key.
func (r *KeyReport) known() bool {
	return len(r.Claims)+len(r.Webhooks)+len(r.Call)+len(r.Parked)+len(r.Calls) > 0 || r.Request != nil
}

// explain answers on a snapshot.
func (r *KeyReport) explain(ctx context.Context, tx pgx.Tx, q ExplainQuestion) error {
	withoutScope := r.Of != nil && q.Scope == ""
	withoutTenant := strings.HasPrefix(q.Scope, "http ") && q.Tenant == ""
	if withoutScope || withoutTenant {
		only, err := r.find(ctx, tx, q)
		switch {
		case err != nil:
			return err
		case only != nil:
			q = *only
			r.Of = q.of()
		case q.Scope == "" || len(r.Found) > 1:
			return nil
		}
	}
	if r.Of == nil {
		return r.read(ctx, tx, q)
	}
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
	return r.read(ctx, tx, q)
}

// OfPosition reports whether the question is about a position, and not about a key.
func (q *ExplainQuestion) OfPosition() bool {
	return q.Partition != nil || q.Offset != nil || q.Topic != "" && q.Key == "" && q.ID == ""
}

// Check returns an error of kind ErrInvalid unless the fields go together.
func (q *ExplainQuestion) Check() error {
	if q.OfPosition() {
		return q.checkPosition()
	}
	return q.checkKey()
}

func (q *ExplainQuestion) checkPosition() error {
	switch {
	case q.Key != "" || q.ID != "":
		return failf(ErrInvalid, "a key %q and a position: give one of the two", q.Key+q.ID)
	case q.Tenant != "" || q.Replay != 0 || q.Provider != "":
		return failf(ErrInvalid, "`Tenant`, `Replay` and `Provider` go with a key")
	case q.Topic == "" || q.Partition == nil || q.Offset == nil:
		return failf(ErrInvalid, "missing: `Topic`, `Partition` and `Offset`: the three name a position")
	case *q.Partition < 0 || *q.Offset < 0:
		return failf(ErrInvalid, "`Partition` and `Offset` must not be negative")
	}
	return nil
}

func (q *ExplainQuestion) checkKey() error {
	switch {
	case q.Key == "" && q.ID == "":
		return failf(ErrInvalid, "the key must not be empty: give a key, or `Topic`, `Partition` and `Offset`")
	case q.Key != "" && q.ID != "":
		return failf(ErrInvalid, "a stored key and an id: give one of the two")
	case q.Scope == "" && (q.Topic != "" || q.Replay != 0):
		return failf(ErrInvalid, "missing: `Scope`: it goes with `Topic` and `Replay`")
	case q.Provider != "" && q.endpoint() == "":
		return failf(ErrInvalid, "`Provider` goes with `Scope` webhook/ENDPOINT")
	}
	if q.Key != "" {
		if _, err := uuid.Parse(q.Key); err != nil {
			return failf(ErrInvalid, "%q is no UUID, and so no stored key: if it is an id, give its `Scope`", q.Key)
		}
	}
	return nil
}

// of is the id that is asked for; nil if it is a stored key.
func (q *ExplainQuestion) of() *KeyOf {
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
func (q *ExplainQuestion) endpoint() string {
	return names.EndpointOf(q.Scope)
}

// key is the stored form of the id.
func (o *KeyOf) key() uuid.UUID {
	return dedupe.Key{Tenant: o.Tenant, Scope: o.Scope, Topic: o.Topic, ID: o.ID, Replay: int32(o.Replay)}.Hash()
}

// resolve finds out whether the id counts within a topic, and within which (K8).
func (o *KeyOf) resolve(ctx context.Context, tx pgx.Tx, topic string) error {
	row, err := readScope(ctx, tx, o.Scope)
	switch {
	case err != nil || row == nil || !row.within():
		return err
	case topic == "" && len(row.Topics) == 1:
		topic = row.Topics[0]
	case topic == "":
		return failf(ErrInvalid, "ids of scope %s count within their topic", o.Scope).but(
			"choose one with `Topic` (%s)",
			strings.Join(row.Topics, ", "),
		)
	}
	if topic != row.FirstTopic {
		o.Topic = topic
	}
	return nil
}

func (r *KeyReport) read(ctx context.Context, tx pgx.Tx, q ExplainQuestion) error {
	limit := q.CountLimit
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
		if !ring.OfConsumers(c.Ring) {
			after = c.ClaimedAfter
			before = c.ClaimedBefore
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
	r.findFirst()
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
	if r.Parked, _, err = reports.Parked[ParkedRow](ctx, tx, reports.ParkedFilter{
		Key:   r.Key,
		Limit: reports.ExplainLimit,
	}); err != nil {
		return err
	}
	if err := r.readAside(ctx, tx, q); err != nil {
		return err
	}
	if err := r.readEvents(ctx, tx, limit); err != nil {
		return err
	}
	requests, _, err := reports.Requests[Request](ctx, tx, reports.RequestFilter{All: true, ID: r.Key, Limit: 1})
	if err != nil {
		return err
	}
	if len(requests) > 0 {
		r.Request = &requests[0]
	}
	if r.Memory, err = reports.Memory(ctx, tx); err != nil {
		return err
	}
	r.leaveOpen()
	return r.readScopes(ctx, tx)
}

// readScopes reads the scopes there are, unless the question's scope is one of them or something is
// stored. Any scope may be one of dedupe.Claim, which has no row.
func (r *KeyReport) readScopes(ctx context.Context, tx pgx.Tx) error {
	found := r.Request != nil || len(r.Claims)+len(r.Webhooks)+len(r.Call)+len(r.Parked) > 0
	if found || r.Of == nil || strings.HasPrefix(r.Of.Scope, "http ") {
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
		open("the message's position: a key is not stored with one")
	}
	for _, c := range r.Calls {
		if c.Derived == nil {
			open("which of the transaction's calls this message asked for, where derived is not yes: a " +
				"batch is one transaction, and Call.ID is hashed")
			break
		}
	}
	if r.callless {
		// A call has the number of the transaction, and a row that of the savepoint in which it was
		// written. Nothing leads from one to the other.
		open("which calls the transaction enqueued, if it claimed the key within a savepoint: the claim " +
			"bears the savepoint's number then, and calls bear the transaction's")
	}
	if len(r.Claims) > 0 {
		open("calls that another transaction enqueued for it, such as a replay, and calls whose segment of " +
			"the log was emptied")
	}
	if r.Webhooks == nil {
		open("whether a webhook's receiver recorded it: the search took too long")
	}
}
