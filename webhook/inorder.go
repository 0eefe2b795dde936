package webhook

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/origin"
)

// newerSQL records the version of an object; see the function's comment in the migration. In:
// scope, object, version. One row: false if a greater version is recorded.
const newerSQL = `select onlyonce.newer($1, $2, $3)`

// ErrOvertaken means that a newer event has already been applied to the event's object.
var ErrOvertaken = errors.New("webhook: the event is older than one that was applied to its object")

// errForeignTx: objects are compared within a scope, which only the consumer's or the endpoint's Tx
// knows. Under another scope, an event of another consumer could overtake this one.
var errForeignTx = errors.New("webhook: InOrder: tx is not the Tx that the consumer or the endpoint gave to " +
	"its handler")

// Ordered configures [InOrder]. Senders deliver in any order, and a failed event arrives again
// later.
type Ordered struct {
	// Version returns the event's object, and a number that is greater for the later of two events.
	// Use the object's version or its time, for example [time.Time.UnixMicro] of a time in the
	// body. [Event.Time] does not work, because it is the delivery's time. Two events of one
	// version are both applied. If the object is empty, the event is not compared. An error is
	// permanent: the event is at fault. Required.
	Version func(*Event) (object string, version int64, err error)
	// DropStale skips a stale event, because a later one has replaced its content. Defaults to
	// false: the event is parked for an operator.
	DropStale bool
	// Stale is called for each stale event before its transaction ends, so it may be called more
	// than once for one event. Defaults to none.
	Stale func(m *consumer.Message, object string, version int64)
}

// InOrder wraps a handler and keeps stale events from it: those older than an event already applied
// to the same object. It works in a consumer and inline, and compares within the consumer's scope
// and tenant. A batch handler gets each event as a batch of one.
//
// The comparison is part of the handler's transaction and locks the object until its end, so two
// events of one object are applied one after the other. It costs a round trip for each event. Each
// object also takes a row in onlyonce.webhook_objects, until no event has touched it for its
// retention (W21).
func InOrder(cfg Ordered, next consumer.Handler) (consumer.Handler, error) {
	l := fields.List{Sentinel: ErrConfig}
	if cfg.Version == nil {
		l.Add("Ordered.Version", "must be set")
	}
	l.Part("handler", next)
	if err := l.Err(); err != nil {
		return nil, err
	}
	return consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		newer, err := cfg.newer(ctx, tx, m)
		switch {
		case err != nil:
			return err
		case newer:
			return next.Handle(ctx, tx, m)
		case cfg.DropStale:
			return nil
		}
		return consumer.Permanent(ErrOvertaken)
	}), nil
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
