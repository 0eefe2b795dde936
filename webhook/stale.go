package webhook

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/origin"
)

// newerSQL notes the version of an object; see the function's comment in the migration. In: scope, object, version. One row: false if a
// greater one is noted.
const newerSQL = `select onlyonce.newer($1, $2, $3)`

// StaleRule is what becomes of an event that is older than what was applied of its object.
type StaleRule int

// Rules. There is no default: one drops, the other stops for a person.
const (
	// DropStale passes it over: what it says was overtaken.
	DropStale StaleRule = iota + 1
	// ParkStale sets it aside for an operator.
	ParkStale
)

// ErrOvertaken says that an event is older than what was applied of its object.
var ErrOvertaken = errors.New("webhook: the event is older than what was applied of its object")

// errForeignTx: objects are compared within a scope, and only the transaction knows it. Under another scope an event could be found overtaken by one of another consumer's.
var errForeignTx = errors.New("webhook: InOrder: tx is not the Tx that the consumer or the receiver gave to its handler")

// Ordered says which events overtake which. Senders deliver in any order, and an event that failed comes again later.
type Ordered struct {
	// Version returns what the event is about, and which of two events is the later one: the object's version, or its time in whatever unit (for
	// a time that the sender signs, [time.Time.UnixMicro] of a member of the body; [Event.Time] is the delivery's and will not do). Two of one
	// version are both applied. An empty object: the event is not compared. An error is the event's fault, and permanent.
	// Required.
	Version func(*Event) (object string, version int64, err error)
	// Rule is what becomes of a stale event. Required.
	Rule StaleRule
	// Stale is called for each, before its transaction ends, so it may be told more than once. Nil: nobody is.
	Stale func(m *consumer.Message, object string, version int64)
}

// InOrder wraps a handler, so that events which are older than what was applied of their object do not reach it. The comparison is made
// in the handler's transaction, and locks the object until its end: two events of one object are applied one after the other. It works
// in a consumer and inline, and counts for the consumer's scope and tenant. It costs a round trip for each event, and a row for each
// object, in onlyonce.webhook_objects, which stays.
func InOrder(cfg Ordered, next consumer.Handler) (consumer.Handler, error) {
	var faults []error
	if cfg.Version == nil {
		faults = append(faults, fmt.Errorf("%w: Ordered.Version: must be set", ErrConfig))
	}
	if cfg.Rule != DropStale && cfg.Rule != ParkStale {
		faults = append(faults, fmt.Errorf("%w: Ordered.Rule: must be DropStale or ParkStale: there is no default, because one of them passes events over", ErrConfig))
	}
	if next == nil {
		faults = append(faults, fmt.Errorf("%w: handler: must not be nil", ErrConfig))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		newer, err := cfg.newer(ctx, tx, m)
		switch {
		case err != nil:
			return err
		case newer:
			return next(ctx, tx, m)
		case cfg.Rule == DropStale:
			return nil
		}
		return consumer.Permanent(ErrOvertaken)
	}, nil
}

func (cfg *Ordered) newer(ctx context.Context, tx consumer.Tx, m *consumer.Message) (bool, error) {
	e, err := EventOf(m)
	if err != nil {
		return false, consumer.Permanent(err)
	}
	object, version, err := cfg.Version(e)
	if err != nil {
		return false, consumer.Permanent(fmt.Errorf("Ordered.Version: %w", err))
	}
	if object == "" {
		return true, nil
	}
	of, ok := tx.(interface{ Origin() (origin.Origin, bool) })
	if !ok {
		return false, consumer.Permanent(errForeignTx)
	}
	origin, ok := of.Origin()
	if !ok {
		return false, consumer.Permanent(errForeignTx)
	}
	scope := origin.Scope
	sum := codec.Hash("onlyonce/object/1", m.Tenant(), scope, object)
	id := pgtype.UUID{Valid: true}
	copy(id.Bytes[:], sum[:16])
	var newer bool
	if err := tx.QueryRow(ctx, newerSQL, scope, id, version).Scan(&newer); err != nil {
		return false, err
	}
	if !newer && cfg.Stale != nil {
		cfg.Stale(m, object, version)
	}
	return newer, nil
}
