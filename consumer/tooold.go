package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// TooOld decides about messages so old, by the time of their id, that their key may be forgotten.
// Such a message is either a copy of an applied one or was never applied, and the database cannot
// distinguish the two.
//
// The consumer compares the id's time with the keys that its database has forgotten, not with the
// clock. So a message that waited in the log while the consumer was down is not too old, because
// keys are kept for it (K6).
type TooOld int

const (
	tooOldUnset TooOld = iota

	// ParkTooOld parks the message for an operator, with reason too-old. `onlyonce parked redrive`
	// applies it, and does not check its age again.
	ParkTooOld

	// ApplyTooOld applies the message. If it is a copy, it takes effect twice.
	ApplyTooOld
)

// IDTime is for [TimedKey]: it returns the time of ids that contain it: UUIDv7 in its canonical
// form of 36 characters, and ULID of 26.
func IDTime(_ *Message, id string) (time.Time, error) {
	at, ok := codec.IDTime(id)
	if !ok {
		return time.Time{}, fmt.Errorf("id %q is neither a UUIDv7 nor a ULID", id)
	}
	return at, nil
}

// TimedKey returns a KeyFunc for ids whose time of making is known, for example
//
//	TimedKey(HeaderKey("message-id"), IDTime)
//
// With it the consumer detects messages older than the keys that the database remembers;
// [Config.TooOld] is then required. made returns when the id of a message was made, by its
// producer's clock. An error means that the id has no time: the message is parked with reason
// no-key. The time must be the same on each copy of a message, so it must not be the record's
// timestamp if copies are produced anew.
//
// Config.Key must be the function that TimedKey returns, not a wrapper of it.
func TimedKey(key KeyFunc, made func(m *Message, id string) (time.Time, error)) KeyFunc {
	return func(m *Message) (string, error) {
		m.timed = true
		if key == nil || made == nil {
			return "", fmt.Errorf("%w: Config.Key: TimedKey: key and made must not be nil", ErrConfig)
		}
		id, err := key(m)
		if err != nil || id == "" {
			return "", err
		}
		m.madeAt, err = made(m, id)
		if err == nil && m.madeAt.IsZero() {
			err = fmt.Errorf("id %q: its time must not be zero", id)
		}
		return noKey(id, err)
	}
}

// isTimed reports whether a KeyFunc is one of TimedKey.
func isTimed(key KeyFunc) bool {
	probe := &Message{}
	func() {
		defer func() { _ = recover() }() // a user's function that panics on an empty message
		_, _ = key(probe)
	}()
	return probe.timed
}

// checkTooOld checks that TooOld is set if and only if ids have times.
func (c *Config) checkTooOld(l *fields.List) {
	timed := c.Key != nil && isTimed(c.Key)
	switch {
	case c.TooOld < tooOldUnset || c.TooOld > ApplyTooOld:
		l.Add("TooOld", "is %d: must be ParkTooOld or ApplyTooOld, or 0 without TimedKey", c.TooOld)
	case timed && c.TooOld == tooOldUnset:
		l.Add("TooOld", "is not set, and Key is one of TimedKey: choose ParkTooOld, or ApplyTooOld if a copy that comes past the horizon may take effect again")
	case !timed && c.TooOld != tooOldUnset:
		l.Add("TooOld", "is set, and Key is none of TimedKey: no message has a time that could be compared")
	}
}

// tooOldSQL reads the time until which ids are too old; see the function's comment in the
// migration. In: scope. Out: one row, null if nothing is forgotten. refuseTooOldSQL raises OO003
// if the oldest id of a batch is. In: scope, the time of that id. Two rows by their primary keys.
const (
	tooOldSQL       = `select onlyonce.too_old($1)`
	refuseTooOldSQL = `select onlyonce.refuse_too_old($1, $2)`
)

// checkAge finds which messages may be copies whose key is forgotten (K9). It runs after the claim:
// a segment that the claim did not search counts as forgotten by then, whenever it was retired. On
// the optimistic path the server raises if there is such a message.
//
// Messages of a replay are exempt, and so are parked ones: an operator has decided on them.
func (e *engine) checkAge(ctx context.Context, tx *guard.Tx, a *attempt, dispositions []*disposition, claimFirst bool) {
	if e.c.cfg.TooOld != ParkTooOld || a.alreadyParked || len(a.msgs) == 0 || a.msgs[0].replay > 0 {
		return
	}
	oldest := time.Time{}
	for i, m := range a.msgs {
		if dispositions[i] == nil && (oldest.IsZero() || m.madeAt.Before(oldest)) {
			oldest = m.madeAt
		}
	}
	if oldest.IsZero() {
		return // duplicates only
	}
	if !claimFirst {
		tx.Engine(stepAge, refuseTooOldSQL, e.c.cfg.Scope, storableTime(oldest))
		return
	}
	var until *time.Time
	if err := tx.EngineRow(ctx, stepAge, tooOldSQL, e.c.cfg.Scope).Scan(&until); err != nil {
		tx.Fail(stepAge, err)
		return
	}
	for i, m := range a.msgs {
		if until != nil && dispositions[i] == nil && !m.madeAt.After(*until) {
			dispositions[i] = &disposition{reason: parked.TooOld, err: fmt.Errorf(
				"its id was made at %s, and ids that were made until %s may be forgotten: the database does not know whether it is a copy",
				m.madeAt.UTC().Format(time.RFC3339), until.UTC().Format(time.RFC3339))}
		}
	}
}
