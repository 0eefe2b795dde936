package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/codec"
)

// explainLimit is how many calls and parked rows are shown.
const explainLimit = 100

// idsOfEndpoints finds each endpoint that has ids of webhooks; its last row is null. By the index webhook_ids_age, one look for each.
const idsOfEndpoints = `
with recursive of_ids as (
  (select w.endpoint from onlyonce.webhook_ids w order by w.endpoint limit 1)
  union all
  select (select w.endpoint from onlyonce.webhook_ids w where w.endpoint > o.endpoint order by w.endpoint limit 1) from of_ids o where o.endpoint is not null)`

// webhookSQL finds when a receiver claimed a key. In: key, from when, until when (null: any). By the index webhook_ids_age within each endpoint; where
// no segment bounds the time it reads all, hence a limit.
const webhookSQL = idsOfEndpoints + `
select w.endpoint, w.seen_at as claimed_at
  from of_ids o join onlyonce.webhook_ids w on w.endpoint = o.endpoint
 where w.key = $1 and w.seen_at >= coalesce($2::timestamptz, '-infinity') and w.seen_at <= coalesce($3::timestamptz, 'infinity')
 order by w.seen_at`

// callsOfSQL lists the calls that a transaction wrote. In: its number, how many. By the index outbox_log_new, one look for each lane of each sink.
const callsOfSQL = sinksOfLog + `
select c.id, c.key::text as key, c.sink, c.name, c.tenant, c.scope, c.state, c.parked_id, c.created_at
  from of_log s cross join generate_series(0, 15) n(lane)
  join onlyonce.outbox_log r on r.sink = s.sink and r.lane = n.lane and r.xid = ($1::bigint)::text::xid8
  join onlyonce.calls c on c.key = r.key and c.id = r.id
 order by c.id limit $2`

type explainedWebhook struct {
	Endpoint  string    `json:"endpoint"`
	ClaimedAt time.Time `json:"claimed_at"`
}

type explainedCall struct {
	ID        int64     `json:"id"`
	Key       string    `json:"key"`
	Sink      string    `json:"sink"`
	Name      string    `json:"name"`
	Tenant    string    `json:"tenant"`
	Scope     string    `json:"scope"`
	State     string    `json:"state"`
	ParkedID  *int64    `json:"parked_id"`
	CreatedAt time.Time `json:"created_at"`
	Derived   *bool     `json:"derived" db:"-"` // true: its key derives from the message. Null: it cannot be told
}

type explainedMemory struct {
	Ring        string   `json:"ring"`
	Horizon     *float64 `json:"horizon_seconds"` // null: for ever
	CompleteFor float64  `json:"complete_for_seconds"`
}

type explainedID struct {
	Tenant string `json:"tenant"`
	Scope  string `json:"scope"`
	Topic  string `json:"topic"`
	ID     string `json:"id"`
	Replay int64  `json:"replay"`
}

// keyReport is what `explain KEY -json` writes.
type keyReport struct {
	Key      string             `json:"key"`
	Of       *explainedID       `json:"of"`
	Claimed  bool               `json:"claimed"`
	Copies   []explainedCopy    `json:"copies"`
	Claims   []explainedClaim   `json:"claims"`
	Webhooks []explainedWebhook `json:"webhooks"`
	Calls    []explainedCall    `json:"calls"`
	Call     []storedRow        `json:"call"`
	Parked   []parkedRow        `json:"parked"`
	Request  *requestRow        `json:"request"`
	Memory   []explainedMemory  `json:"memory"`
	NotKnown []string           `json:"not_known"`

	callless bool // a claim's transaction is known, and no call of it
}

// explaining is what the operator asks for.
type explaining struct {
	cursorFilter
	tenant         *string
	provider       *string
	replay, offset *int64
}

func explainCommand() command {
	return command{
		name:    "explain",
		args:    "[-postgres URL] (KEY [-scope S [-tenant T] [-topic T] [-replay N] [-provider P]] | -topic T -partition N -offset O [-scope S]) [-json]",
		operand: true,
		summary: "tell what is stored of a key or of a position, and nothing else",
		help: `
Tells what the database holds of one message, webhook, call or request, and guesses nothing. It changes nothing and works on a standby too.

KEY is a message's id, with -scope the consumer's Scope, -tenant where the consumer has tenants, -topic where its ids
count within their topic (Config.Copies), and -replay for the claim in that replay; of a
webhook its sender's, with -scope webhook/ENDPOINT and, for a provider of your own (webhook.HMAC) of which nothing is stored yet, -provider; of a request "http POST /v1/charges" and so on. Without -scope KEY is the stored key, a UUID, as other commands show
it; of a call the idempotency key that the remote saw. A KEY that begins with a dash follows "--".

Of a key: the segments that hold it, and between which times it was claimed; its payload's fingerprint, the
first 16 digits of its SHA-256; the transaction that claimed it, with its time where track_commit_timestamp is on. What was restored from a
dump, or brought by "cursor adopt -from", bears the time and the transaction that wrote it here. Then the calls which that transaction enqueued,
what is parked under the key, conflicts too, a webhook's endpoint and time, and the HTTP request of that id. A key that is not there was never claimed, or was
forgotten, or its claim has not committed: it says since when claims are complete.

Whether a copy that comes now is a duplicate depends on who claims it, because the rings do not know each other's keys: a consumer asks consumer_keys for
a message of Kafka; webhooks, dedupe.Claim and calls that are enqueued outside of consumers ask standard_keys. Both find what is parked
under the key and not settled (conflicts apart), also where the rings have forgotten it.

A claim within a savepoint bears the savepoint's transaction id, by which Postgres does not tell the transaction: the calls that it enqueued are not
found then, and "not known" says so.

With -topic, -partition and -offset: of each cursor there, or of that of -scope, whether the offset is behind it, the batch that moved it past, if
that is still on record, what is parked of that position, and the event if the topic is a stream. A key is not stored by its position.

With -json, one object. Of a key:
  key, of             as stored; {tenant, scope, topic (empty: the id counts for the scope), id, replay}, null without -scope
  claimed             a ring remembers it
  copies              what a copy is that comes now: list of {ring (consumer_keys: one that a consumer reads; standard_keys: any other), duplicate, because
                      (remembered: by that ring; parked: a row that is not settled; stored: the call is; null: it is new)}
  claims              list of {ring, segment, state (current, draining, closed; retired, forgotten: no longer asked), remembered, claimed_after,
                      claimed_before, fingerprint (null: not compared), transaction ({xid, status, committed_at}, null: not known)}
  webhooks            list of {endpoint, claimed_at}; null: not looked for, it took over 5 s
  calls               calls of the claiming transaction: list of {id, key, sink, name, tenant, scope, state, parked_id, created_at, derived (true: from this
                      message; null: cannot be told)}, at most 100
  call                where the key is a call's: list of {place, id, key, sink, state, erased_at, bytes}
  parked              as in "onlyonce parked list -json", at most 100
  request             as in "onlyonce request list -json", or null
  memory              list of {ring, horizon_seconds (null: for ever), complete_for_seconds}
  not_known           what the answer leaves open, in words
Of a position:
  topic, partition, offset
  cursors             list of {scope, position, state, offset (handled, replaying, ahead, earlier-run, before-start), means, moved ({from_offset, next_offset,
                      transaction}, null: pruned), calls (of that transaction)}
  parked, event       as above; {id, tenant, appended_at, erased_at} or null
  not_known           as above

Examples:
  onlyonce explain order-118 -scope stock
  onlyonce explain 6a1f0b52-93c1-8d0e-a3b4-0f1e2d3c4b5a
  onlyonce explain -topic orders -partition 3 -offset 4711`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address, asJSON := postgresVar(fs), jsonVar(fs)
			ask := &explaining{}
			ask.cursorFilter.flags(fs)
			textVar(fs, &ask.tenant, "tenant", "the tenant `T` of the key (default: none)")
			textVar(fs, &ask.provider, "provider", "of a webhook, the `P` that sent it (default: whichever is known for the endpoint)")
			numberVar(fs, &ask.replay, "replay", "the replay `N` in which the key was claimed (default: none)", 1, math.MaxInt32)
			numberVar(fs, &ask.offset, "offset", "the offset `O`", 0, math.MaxInt64-1)
			return func(ctx context.Context, a *app) error {
				if ask.partition != nil || ask.offset != nil || ask.topic != nil && a.operand == nil {
					return a.explainPosition(ctx, *address, ask, *asJSON)
				}
				return a.explainKey(ctx, *address, ask, *asJSON)
			}
		},
	}
}

// key is the stored key that was asked for, or the id whose it is.
func (q *explaining) key(operand *string) (uuid.UUID, *explainedID, error) {
	switch {
	case operand == nil:
		return uuid.UUID{}, nil, usagef("missing: KEY, or -topic, -partition and -offset")
	case *operand == "":
		return uuid.UUID{}, nil, usagef("KEY must not be empty")
	case q.scope == nil && (q.tenant != nil || q.replay != nil || q.topic != nil || q.provider != nil):
		return uuid.UUID{}, nil, usagef("missing: -scope: it goes with -tenant, -topic, -replay and -provider")
	case q.provider != nil && q.endpoint() == "":
		return uuid.UUID{}, nil, usagef("-provider goes with -scope webhook/ENDPOINT")
	case q.scope == nil:
		key, err := uuid.Parse(*operand)
		if err != nil {
			return uuid.UUID{}, nil, usagef("%q is no UUID, and so no stored key: say whose id it is with -scope", *operand)
		}
		return key, nil, nil
	}
	of := &explainedID{Scope: *q.scope, ID: *operand}
	if q.tenant != nil {
		of.Tenant = *q.tenant
	}
	if q.replay != nil {
		of.Replay = *q.replay
	}
	if q.provider != nil {
		of.ID = q.endpoint() + "/" + *q.provider + "/" + of.ID
	}
	return uuid.UUID{}, of, nil // see resolve
}

// key is the stored form of the id.
func (o *explainedID) key() uuid.UUID {
	return dedupe.Key{Tenant: o.Tenant, Scope: o.Scope, Topic: o.Topic, ID: o.ID, Replay: int32(o.Replay)}.Hash()
}

// resolve finds out whether the id counts within a topic, and within which. Nil: a stored key was given.
func (o *explainedID) resolve(ctx context.Context, tx pgx.Tx, topic *string) error {
	if o == nil {
		return nil
	}
	row, err := readScope(ctx, tx, &o.Scope)
	switch {
	case err != nil || row == nil || !row.within():
		return err
	case topic == nil && len(row.Topics) == 1:
		topic = &row.Topics[0]
	case topic == nil:
		return usagef("ids of scope %s count within their topic: say with -topic which (%s)", o.Scope, strings.Join(row.Topics, ", "))
	}
	if *topic != row.Home {
		o.Topic = *topic
	}
	return nil
}

// endpoint is whose webhooks are asked for, "" if none.
func (q *explaining) endpoint() string {
	if q.scope == nil {
		return ""
	}
	endpoint, _ := strings.CutPrefix(*q.scope, "webhook/")
	if endpoint == *q.scope {
		return ""
	}
	return endpoint
}

// providers are those of package webhook. Others name themselves (webhook.HMAC).
var providers = []string{"github", "shopify", "slack", "standard", "stripe"}

// providersSQL finds providers of an endpoint by what is stored of it: an event's id is endpoint/provider/id. In: endpoint, scope. Of the stream the latest
// 1,000 events of each partition, by the unique index of each segment; of what is parked by the index parked_position.
const providersSQL = `
select distinct split_part(i.id, '/', 2) as provider
  from (select e.id from onlyonce.streams s cross join generate_series(0, s.partitions - 1) n
         cross join lateral (select l.id from onlyonce.event_log l where l.stream = s.id and l.partition = n order by l."offset" desc limit 1000) e
         where s.topic = 'webhook.' || $1::text
        union all select p.event_id from onlyonce.parked p where p.kind = 'event' and p.scope = $2) i(id)
 where starts_with(i.id, $1::text || '/') and split_part(i.id, '/', 2) <> ''`

// ofSender turns the sender's id of a webhook into the one that its receiver claims: endpoint/provider/id. Which provider it is shows in what is stored; where
// nothing of it is, the answer is about the id as it was given.
func (r *keyReport) ofSender(ctx context.Context, tx pgx.Tx, endpoint string, limit time.Duration) error {
	if strings.HasPrefix(r.Of.ID, endpoint+"/") {
		return nil // it is in that form
	}
	type row struct{ Provider string }
	found, err := collect[row](ctx, tx, providersSQL, endpoint, r.Of.Scope)
	if err != nil {
		return err
	}
	all := slices.Clone(providers)
	for _, f := range found {
		all = append(all, f.Provider)
	}
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
			r.Key, r.Of = key, &of
			return nil
		}
	}
	if is, err := r.stored(ctx, tx, r.Key, limit); is || err != nil {
		return err
	}
	r.NotKnown = append(r.NotKnown, fmt.Sprintf("whether it came from another provider than %s: say which with -provider", strings.Join(all, ", ")))
	return nil
}

// stored reports whether anything is stored under a webhook's key.
func (r *keyReport) stored(ctx context.Context, tx pgx.Tx, key string, limit time.Duration) (bool, error) {
	claims, err := collect[claimRow](ctx, tx, claimsSQL, key)
	if err != nil || len(claims) > 0 {
		return len(claims) > 0, err
	}
	parked, err := parkedOf(ctx, tx, nil, &key, nil, nil, nil)
	if err != nil || len(parked) > 0 {
		return len(parked) > 0, err
	}
	noted, err := collectWithin[explainedWebhook](ctx, tx, limit, webhookSQL, key, nil, nil)
	return len(noted) > 0, err
}

func (a *app) explainKey(ctx context.Context, address string, ask *explaining, asJSON bool) error {
	key, of, err := ask.key(a.operand)
	if err != nil {
		return err
	}
	r := &keyReport{Key: key.String(), Of: of, Claims: []explainedClaim{}, Calls: []explainedCall{}, NotKnown: []string{}}
	if err := a.readSnapshot(ctx, address, "looking for the key", func(ctx context.Context, tx pgx.Tx) error {
		if err := of.resolve(ctx, tx, ask.topic); err != nil {
			return err
		}
		if of != nil {
			r.Key = of.key().String()
		}
		if endpoint := ask.endpoint(); endpoint != "" && ask.provider == nil {
			if err := r.ofSender(ctx, tx, endpoint, a.countLimit); err != nil {
				return err
			}
		}
		return r.read(ctx, tx, a.countLimit)
	}); err != nil {
		return err
	}
	if asJSON {
		return writeJSON(a.out, r)
	}
	a.writeKey(r)
	return nil
}

func (r *keyReport) read(ctx context.Context, tx pgx.Tx, limit time.Duration) error {
	claims, err := collect[claimRow](ctx, tx, claimsSQL, r.Key)
	if err != nil {
		return err
	}
	var after, before *time.Time // of a claim by the clock
	seen := map[int64]bool{}
	for i := range claims {
		c := claims[i].explained()
		r.Claims = append(r.Claims, c)
		r.Claimed = r.Claimed || c.Remembered
		if c.Ring == "standard_keys" {
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
	if err := r.readCopies(ctx, tx); err != nil {
		return err
	}
	for i := range r.Calls {
		r.Calls[i].derive(r.Of)
	}
	if r.Webhooks, err = collectWithin[explainedWebhook](ctx, tx, limit, webhookSQL, r.Key, after, before); err != nil {
		return err
	}
	for i := range r.Webhooks {
		r.Webhooks[i].ClaimedAt = r.Webhooks[i].ClaimedAt.UTC()
	}
	if r.Call, err = collect[storedRow](ctx, tx, storedSQL, r.Key); err != nil {
		return err
	}
	for i := range r.Call {
		utc(r.Call[i].ErasedAt)
	}
	if r.Parked, err = parkedOf(ctx, tx, nil, &r.Key, nil, nil, nil); err != nil {
		return err
	}
	requests, err := collect[requestRow](ctx, tx, requestsSQL, true, nil, nil, 1, r.Key)
	if err != nil {
		return err
	}
	if len(requests) > 0 {
		r.Request = &requests[0]
		r.Request.utc()
	}
	if r.Memory, err = readMemory(ctx, tx); err != nil {
		return err
	}
	r.leaveOpen()
	return nil
}

// leaveOpen says what the answer does not tell.
func (r *keyReport) leaveOpen() {
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
		// Calls bear the number of the transaction, rows that of the savepoint they were written in, and nothing leads from this to that.
		open("which calls the transaction enqueued, if it claimed the key within a savepoint: the claim bears the savepoint's number then, and calls bear the transaction's")
	}
	if len(r.Claims) > 0 {
		open("calls that another transaction enqueued for it, such as a replay, and calls whose segment of the log was emptied")
	}
	if r.Webhooks == nil {
		open("whether a webhook's receiver noted it: looking took too long")
	}
}

// callsOf lists the calls of a transaction.
func callsOf(ctx context.Context, tx pgx.Tx, x *transaction) ([]explainedCall, error) {
	calls, err := collect[explainedCall](ctx, tx, callsOfSQL, x.Xid, explainLimit)
	for i := range calls {
		calls[i].CreatedAt = calls[i].CreatedAt.UTC()
	}
	return calls, err
}

// derive says whether the call's key is that of the message's call of that name without an id. What it is not cannot be told.
func (c *explainedCall) derive(of *explainedID) {
	if of == nil || of.Tenant != c.Tenant || of.Scope != c.Scope {
		return
	}
	for _, replay := range []int32{0, int32(of.Replay)} {
		c.derived(dedupe.Origin{Tenant: of.Tenant, Scope: of.Scope, Topic: of.Topic, ID: of.ID, Replay: replay})
	}
}

func (c *explainedCall) derived(o dedupe.Origin) {
	if uuid.UUID(codec.Call(append(o.Fields(), c.Sink, c.Name, "")...)).String() == c.Key {
		yes := true
		c.Derived = &yes
	}
}

func parkedOf(ctx context.Context, tx pgx.Tx, scope, key, topic *string, partition, offset *int64) ([]parkedRow, error) {
	rows, err := collect[parkedRow](ctx, tx, parkedSQL, scope, nil, nil, explainLimit, nil, nil, key, topic, partition, offset)
	for i := range rows {
		rows[i].ParkedAt = rows[i].ParkedAt.UTC()
		utc(rows[i].SettledAt)
		rows[i].Error = firstLine(rows[i].Error, errorJSON)
	}
	return rows, err
}

// readMemory reads since when the rings hold every key. A segment is emptied whole, so they do since the oldest one of those that are asked was opened.
func readMemory(ctx context.Context, tx pgx.Tx) ([]explainedMemory, error) {
	rings, err := readKeyRings(ctx, tx)
	if err != nil {
		return nil, err
	}
	var all []explainedMemory
	for _, k := range rings {
		m := explainedMemory{Ring: k.Ring, Horizon: k.Horizon}
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
