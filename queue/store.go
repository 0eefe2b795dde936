package queue

import (
	"context"
	"encoding/hex"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/intake"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// holdSQL is the fence of the receiver's place. In: lease, epoch, nonce. It raises OO001 for a
// receiver that was replaced, and keeps the place from being taken over until COMMIT.
const holdSQL = `select onlyonce.hold($1, $2, $3::uuid)`

const stepHold = "hold"

// incoming is a delivery on its way into the database.
type incoming struct {
	delivery *Delivery
	item     intake.Item
	fault    error // why it has no id; it is parked
	// asideID is the id under which the delivery is parked, if not under its own: made of tenant,
	// id and body, so that each other body of an id is parked once (Q2).
	asideID string
}

// Entry implements intake.Entry.
func (in *incoming) Entry() *intake.Item { return &in.item }

func (r *receiver) identify(all []*Delivery) []*incoming {
	slow := time.AfterFunc(r.cfg.LeaseTTL, func() { r.state.Set(errIdentify) })
	defer slow.Stop() // the next Set shows that it has returned
	out := make([]*incoming, len(all))
	for i, d := range all {
		out[i] = r.identifyOne(d)
	}
	return out
}

func (r *receiver) identifyOne(d *Delivery) *incoming {
	in := &incoming{delivery: d}
	compared, fault := r.cfg.identify(d)
	in.fault = fault
	in.item.Event = intake.Event{
		Tenant:  d.Tenant,
		ID:      d.ID,
		Key:     d.Key,
		Headers: storableHeaders(d.Headers),
		Body:    d.Body,
	}
	if in.item.Body == nil {
		in.item.Body = []byte{}
	}
	if in.fault != nil {
		in.asideID = "no-id/" + uuid.NewString()
		in.item.Tenant = ""
		in.item.ID = in.asideID
		return in
	}
	sum := codec.Hash("onlyonce/queue-aside/1", d.Tenant, d.ID, string(compared))
	in.asideID = hex.EncodeToString(sum[:])
	in.item.Identify(Scope(r.cfg.Name))
	if r.cfg.Fingerprint != nil {
		in.item.Fingerprint = inbox.Compared(compared)
	}
	return in
}

// Claim implements intake.Way: it proves that the place is held, and claims the ids of the messages
// that have one.
func (r *receiver) Claim(
	ctx context.Context,
	tx *guard.Tx,
	set []*incoming,
	wait time.Duration,
) ([]intake.Found, error) {
	const bound = storeTimeout * 3 / 4
	intake.Begin(tx, wait, bound)
	if r.lease != nil {
		tx.Engine(stepHold, holdSQL, r.lease.ID, r.lease.Epoch, r.lease.Nonce)
	}
	found := make([]intake.Found, len(set))
	var keys []dedupe.Key
	var at []int
	for i, in := range set {
		if in.fault != nil {
			found[i] = intake.NoID
			continue
		}
		keys = append(keys, dedupe.Key{
			Tenant:      in.item.Tenant,
			Scope:       Scope(r.cfg.Name),
			ID:          in.item.ID,
			Fingerprint: in.item.Fingerprint,
		})
		at = append(at, i)
	}
	outcomes, err := intake.Claim(ctx, tx, keys)
	if err != nil {
		return nil, err
	}
	for i, outcome := range outcomes {
		found[at[i]] = foundOf[outcome]
	}
	if err := r.checkAge(ctx, tx, set, found); err != nil {
		return nil, err
	}
	intake.Claimed(tx, bound)
	return found, r.braked(set, found)
}

var foundOf = map[dedupe.Outcome]intake.Found{
	dedupe.Fresh:     intake.Fresh,
	dedupe.Duplicate: intake.Known,
	dedupe.Conflict:  intake.Divergent,
}

// Apply implements intake.Way: a message is only appended.
func (*receiver) Apply(context.Context, *guard.Tx, *incoming) error { return nil }

// Refuses implements intake.Way (Q4).
func (*receiver) Refuses(err error) (reason string) { return intake.RefusesUnstorable(err) }

// Aside implements intake.Way: a message without an id is parked, and one with the id of another
// body, once for each body (Q2).
func (r *receiver) Aside(ctx context.Context, tx *guard.Tx, set []*incoming) error {
	keys := make([]dedupe.Key, len(set))
	for i, in := range set {
		keys[i] = dedupe.Key{Scope: r.aside(), ID: in.asideID, Fingerprint: dedupe.NoFingerprint}
	}
	outcomes, err := intake.Claim(ctx, tx, keys)
	if err != nil {
		return err
	}
	for i, in := range set {
		if outcomes[i] != dedupe.Fresh {
			in.item.Outcome = intake.Copied
			continue
		}
		reason := parked.Conflict
		why := errConflict
		if in.fault != nil {
			reason = parked.NoKey
			why = in.fault
		}
		whole := in.item.Event
		whole.Hash = pgtype.UUID{} // a parked row with a key claims it
		r.storing.Park(tx, &whole, reason, why)
		in.item.ParkedAs(reason, why)
	}
	return nil
}
