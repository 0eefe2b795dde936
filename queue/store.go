package queue

import (
	"context"
	"encoding/hex"
	"iter"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/intake"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// holdSQL is the fence of the receiver's place. In: lease, epoch, nonce. It raises OO001 for a
// receiver that was replaced, and keeps the place from being taken over until COMMIT.
const holdSQL = `select onlyonce.hold($1, $2, $3::uuid)`

const (
	stepHold  = "hold"
	partBytes = 8 << 20
)

// incoming is a delivery on its way into the database.
type incoming struct {
	delivery *Delivery
	event    intake.Event
	fault    error  // why it has no id; it is parked
	poison   error  // why the database does not append it; it is parked under its id
	asideID  string // under which it is parked once, if not under its id
}

func (r *receiver) identify(all []*Delivery) []*incoming {
	slow := time.AfterFunc(r.cfg.LeaseTTL, func() { r.state.Set(errIdentify) })
	defer slow.Stop() // the next Set shows that it has returned
	out := make([]*incoming, len(all))
	for i, d := range all {
		in := &incoming{delivery: d, fault: identify(r.cfg.Identify, d)}
		in.event = intake.Event{Tenant: d.Tenant, ID: d.ID, Key: d.Key, Headers: storableHeaders(d.Headers), Body: d.Body}
		if in.event.Body == nil {
			in.event.Body = []byte{}
		}
		if in.fault != nil {
			in.asideID = "no-id/" + uuid.NewString()
			in.event.Tenant, in.event.ID = "", in.asideID
		} else {
			sum := codec.Hash("onlyonce/queue-aside/1", d.Tenant, d.ID, string(d.Body))
			in.asideID = hex.EncodeToString(sum[:])
		}
		out[i] = in
	}
	return out
}

// parts divides deliveries into those of one transaction each.
func parts(all []*incoming) iter.Seq[[]*incoming] {
	return func(yield func([]*incoming) bool) {
		for len(all) > 0 {
			n, size := 0, 0
			for n < len(all) && (n == 0 || size+len(all[n].event.Body) <= partBytes) {
				size += len(all[n].event.Body)
				n++
			}
			if !yield(all[:n]) {
				return
			}
			all = all[n:]
		}
	}
}

// storePart stores deliveries in one transaction. If the database does not take one of them, it
// stores each alone, and parks those that cannot be appended. refused are those that cannot be
// parked either (Q4), and, with Ordered and a nil error, those after the first of them (Q5).
func (r *receiver) storePart(ctx context.Context, part []*incoming) (done Stored, refused map[*incoming]error, err error) {
	done, err = r.transact(ctx, part)
	if err == nil || !isPoison(err) {
		return done, nil, err
	}
	done, refused = Stored{}, map[*incoming]error{}
	for n, in := range part {
		one, err := r.transact(ctx, []*incoming{in})
		if err != nil && isPoison(err) {
			in.poison = err
			one, err = r.transact(ctx, []*incoming{in})
		}
		switch {
		case err == nil:
			done = Stored{done.Fresh + one.Fresh, done.Copies + one.Copies, done.Parked + one.Parked}
		case isPoison(err):
			refused[in] = err
			if r.cfg.Ordered {
				for _, later := range part[n+1:] {
					refused[later] = nil
				}
				return done, refused, nil
			}
		default:
			return Stored{}, nil, err // those that are stored are copies in the next run
		}
	}
	return done, refused, nil
}

// isPoison reports whether the server says that it will never take the data: classes data
// exception, integrity constraint violation, program limit exceeded, and error of PL/pgSQL, whose
// RAISE EXCEPTION is P0001.
func isPoison(err error) bool {
	state := guard.SQLState(err)
	return len(state) == 5 && slices.Contains([]string{"22", "23", "54", "P0"}, state[:2])
}

// transact is the receiving transaction. A stop does not cut it short, and an unknown COMMIT is
// found out by another run (Q1).
func (r *receiver) transact(ctx context.Context, part []*incoming) (done Stored, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	end := r.intake.Run(ctx, func(ctx context.Context, tx *guard.Tx) (bool, error) {
		done, err = r.claimAndStore(ctx, tx, part)
		return done.Fresh+done.Parked > 0, err
	}, nil)
	return done, end.Err
}

// claimAndStore does everything before COMMIT: it claims, and appends or parks (Q2).
func (r *receiver) claimAndStore(ctx context.Context, tx *guard.Tx, part []*incoming) (done Stored, err error) {
	intake.Begin(tx, storeTimeout*3/4)
	if r.lease != nil {
		tx.Engine(stepHold, holdSQL, r.lease.ID, r.lease.Epoch, r.lease.Nonce)
	}
	var known, aside []*incoming
	var keys, asideKeys []dedupe.Key
	setAside := func(in *incoming) {
		aside, asideKeys = append(aside, in), append(asideKeys, dedupe.Key{Scope: r.aside(), ID: in.asideID, Fingerprint: dedupe.NoFingerprint})
	}
	for _, in := range part {
		if in.fault != nil {
			setAside(in)
			continue
		}
		known = append(known, in)
		keys = append(keys, dedupe.Key{Tenant: in.event.Tenant, Scope: Scope(r.cfg.Name), ID: in.event.ID, Fingerprint: dedupe.FingerprintOf(in.event.Body)})
	}
	outcomes, err := intake.Claim(ctx, tx, keys)
	if err != nil {
		return done, err
	}
	var fresh []*intake.Event
	for i, in := range known {
		switch outcomes[i] {
		case dedupe.Fresh:
			if in.poison != nil { // an operator may redrive it: its copies are copies
				in.event.Identify(Scope(r.cfg.Name))
				r.intake.Park(tx, &in.event, parked.Permanent, in.poison)
				done.Parked++
				continue
			}
			fresh = append(fresh, &in.event)
		case dedupe.Duplicate:
			done.Copies++
		case dedupe.Conflict:
			setAside(in)
		}
	}
	if outcomes, err = intake.Claim(ctx, tx, asideKeys); err != nil {
		return done, err
	}
	for i, in := range aside {
		switch {
		case outcomes[i] != dedupe.Fresh:
			done.Copies++
			continue
		case in.fault != nil:
			r.intake.Park(tx, &in.event, parked.NoKey, in.fault)
		default:
			r.intake.Park(tx, &in.event, parked.Conflict, errConflict)
		}
		done.Parked++
	}
	done.Fresh = len(fresh)
	return done, r.intake.Append(ctx, tx, fresh...)
}
