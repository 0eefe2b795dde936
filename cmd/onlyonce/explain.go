package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"reflect"
	"strings"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/ops"
)

// explaining holds the operator's flags.
type explaining struct {
	scope, topic   *string
	partition      *int64
	tenant         *string
	provider       *string
	replay, offset *int64
	all            bool
}

func explainCommand() command {
	return command{
		name:    "explain",
		args:    "[-postgres URL] (KEY [-scope S [-tenant T] [-topic T] [-replay N] [-provider P]] | -topic T -partition N -offset O [-scope S]) [-all] [-json]",
		operand: true,
		summary: "show what became of a message, webhook, call or request",
		json:    []reflect.Type{reflect.TypeFor[ops.KeyReport](), reflect.TypeFor[ops.PositionReport]()},
		help: `
Tells what the database holds of one message, webhook, call or request, and guesses nothing. It changes nothing and works on a standby too.

KEY is a message's id, with -scope the consumer's Scope, -tenant where the consumer has tenants, -topic where its ids
count within their topic (Config.Copies), and -replay for the claim in that replay; of a
webhook its sender's, with -scope webhook/ENDPOINT and, for a provider of your own (webhook.HMAC) of which nothing is stored yet, -provider; of a request "http POST /v1/charges" and so on. Without -scope KEY is the stored key, a UUID, as other commands show
it, or else an id that is looked for in the scopes of all consumers and endpoints; of a call the idempotency key that the remote saw. A KEY that begins with a dash follows "--".

Of a key: the segments that hold it, and between which times it was claimed; its payload's fingerprint, the
first 16 digits of its SHA-256; the transaction that claimed it, with its time where track_commit_timestamp is on. What was restored from a
dump, or brought by "cursor adopt -from", bears the time and the transaction that wrote it here. Then the calls which that transaction enqueued,
what is parked under the key, conflicts too, a webhook's endpoint and time, and the HTTP request of that id. A key that is not there was never claimed, or was
forgotten, or its claim has not committed: it says since when claims are complete.

Whether a copy that comes now is a duplicate depends on who claims it, because the rings do not know each other's keys: a consumer asks consumer_keys, or
the ring of its scope's class, for a message of Kafka; webhooks, dedupe.Claim and calls that are enqueued outside of consumers ask standard_keys. Both find what is parked
under the key and not settled (conflicts apart), also where the rings have forgotten it.

A claim within a savepoint bears the savepoint's transaction id, by which Postgres does not tell the transaction: the calls that it enqueued are not
found then, and "not known" says so.

With -topic, -partition and -offset: of each cursor there, or of that of -scope, whether it has passed the offset, in which batch if that is
still on record, the message parked at that position, and the event if the topic is a stream. A key is not stored by its position.

Examples:
  onlyonce explain order-118 -scope stock
  onlyonce explain 6a1f0b52-93c1-8d0e-a3b4-0f1e2d3c4b5a
  onlyonce explain -topic orders -partition 3 -offset 4711`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address, asJSON := postgresVar(fs), jsonVar(fs)
			q := &explaining{}
			textVar(fs, &q.scope, "scope", "the scope `S` of the consumer")
			textVar(fs, &q.topic, "topic", "the topic `T`")
			numberVar(fs, &q.partition, "partition", "the partition `N`", 0, math.MaxInt32)
			textVar(fs, &q.tenant, "tenant", "the tenant `T` of the key (default: none)")
			textVar(fs, &q.provider, "provider", "of a webhook, the `P` that sent it (default: whichever is known for the endpoint)")
			numberVar(fs, &q.replay, "replay", "the replay `N` in which the key was claimed (default: none)", 1, math.MaxInt32)
			numberVar(fs, &q.offset, "offset", "the offset `O`", 0, math.MaxInt64-1)
			fs.BoolVar(&q.all, "all", false, "all calls of the transaction, where some are known to be of this message")
			return func(ctx context.Context, a *app) error {
				if q.partition != nil || q.offset != nil || q.topic != nil && a.operand == nil {
					return a.explainPosition(ctx, *address, q, *asJSON)
				}
				return a.explainKey(ctx, *address, q, *asJSON)
			}
		},
	}
}

// question returns the question about a key.
func (q *explaining) question(operand *string) (k ops.KeyQuestion, err error) {
	switch {
	case operand == nil:
		return k, usagef("missing: KEY, or -topic, -partition and -offset")
	case *operand == "":
		return k, usagef("KEY must not be empty")
	case q.scope == nil && (q.tenant != nil || q.replay != nil || q.topic != nil || q.provider != nil):
		return k, usagef("missing: -scope: it goes with -tenant, -topic, -replay and -provider")
	case q.scope == nil && uuid.Validate(*operand) == nil:
		k.Key = *operand
		return k, nil
	}
	k = ops.KeyQuestion{ID: *operand, Scope: text(q.scope), Tenant: text(q.tenant), Topic: text(q.topic), Provider: text(q.provider)}
	if q.replay != nil {
		k.Replay = int32(*q.replay)
	}
	return k, nil
}

// elsewhere says where an id is that was looked for in all scopes.
func (a *app) elsewhere(r *ops.KeyReport, id string) error {
	if len(r.Found) == 0 {
		tried := "there is no scope yet"
		if len(r.Scopes) > 0 {
			tried = "these were tried: " + strings.Join(r.Scopes, ", ")
		}
		return &refusal{fmt.Sprintf("nothing is stored of the id %q in any scope (%s). Say -scope to see since when that is known, or with a tenant -tenant too", id, tried)}
	}
	a.say("Several scopes have the id:")
	for i := range r.Found {
		a.paste(cell(r.Found[i].Command()))
	}
	return &refusal{"say with -scope which is meant"}
}

func (a *app) explainKey(ctx context.Context, address string, q *explaining, asJSON bool) error {
	k, err := q.question(a.operand)
	if err != nil {
		return err
	}
	if err := k.Check(); err != nil {
		return decided(err)
	}
	k.CountLimit = a.countLimit
	var r *ops.KeyReport
	err = a.ask(ctx, address, "looking for the key", func(ctx context.Context, db ops.DB) (err error) {
		r, err = ops.ExplainKey(ctx, db, k)
		return err
	})
	switch {
	case err != nil:
		return err
	case r.Key == "":
		return a.elsewhere(r, k.ID)
	case asJSON:
		return a.writeJSON(r)
	}
	a.writeKey(r, q.all)
	return nil
}

func (a *app) explainPosition(ctx context.Context, address string, q *explaining, asJSON bool) error {
	switch {
	case a.operand != nil:
		return usagef("KEY %q and a position: ask for one of the two", *a.operand)
	case q.tenant != nil || q.replay != nil:
		return usagef("-tenant and -replay go with a KEY")
	}
	if err := missing(given{"-topic", q.topic != nil}, given{"-partition", q.partition != nil}, given{"-offset", q.offset != nil}); err != nil {
		return err
	}
	p := ops.PositionQuestion{Topic: *q.topic, Partition: int32(*q.partition), Offset: *q.offset, Scope: text(q.scope)}
	var r *ops.PositionReport
	err := a.ask(ctx, address, "looking at the position", func(ctx context.Context, db ops.DB) (err error) {
		r, err = ops.ExplainPosition(ctx, db, p)
		return err
	})
	switch {
	case err != nil:
		return err
	case asJSON:
		return a.writeJSON(r)
	}
	a.writePosition(r, q.all)
	return nil
}
