package intake

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// Found is what a claim found of an event.
type Found int16

// What a claim finds. The first four are codes of onlyonce.receive_webhooks.
const (
	Fresh     Found = iota // only this transaction claims the id
	Known                  // a copy
	Divergent              // the id came before with another body
	SameBody               // the body came before under another id
	NoID                   // it has no id that could be claimed
)

// Outcome is what became of an event that Store has taken.
type Outcome int8

// Outcomes. The zero value is none: see Item.Err.
const (
	Taken  Outcome = iota + 1 // appended, or what else its Way does with a fresh event
	Copied                    // it came before: nothing was written
	Parked                    // parked whole; see Item.Reason
)

// Item is an event on its way through a Store, and what became of it.
type Item struct {
	Event
	Digest []byte         // of the body, if the body decides too whether the event is a copy (W7)
	Place  string         // where it lives, if there are several databases (N2)
	Origin *origin.Origin // of the calls that its Way enqueues; nil for none
	Noted  bool           // its claim has noted something besides the id, and is committed for a copy too

	// What became of it. Only the Store writes these.
	Outcome Outcome
	Found   Found
	Reason  string // why it is parked
	Err     error  // why it is neither stored nor parked; nil if Outcome is set
	Lost    bool   // the last run lost its connection

	park  error // why its Way refuses it: it is parked, for Reason
	why   error // why it is parked
	tried bool  // a run whose COMMIT has no answer has taken it
}

// Refuse has a fresh event parked instead of taken. A Way calls it in Claim.
func (it *Item) Refuse(reason string, why error) {
	it.park = why
	it.Reason = reason
}

// ParkedAs notes that the event is parked in this transaction. A Way calls it in Aside.
func (it *Item) ParkedAs(reason string, why error) {
	it.Outcome = Parked
	it.Reason = reason
	it.why = why
}

// fails notes that the event is neither stored nor parked. What an earlier run has said of it does
// not count.
func (it *Item) fails(err error) {
	it.Outcome = 0
	it.Err = err
}

// Refused returns why the Way has refused the event, which is parked for Reason; nil: it has not.
func (it *Item) Refused() error { return it.park }

// Entry is a Way's own view of an Item.
type Entry interface{ Entry() *Item }

// Entry returns the item itself.
func (it *Item) Entry() *Item { return it }

// Way is what one way in does in its own manner.
type Way[E Entry] interface {
	// Claim begins the transaction and claims the ids of a set. It returns what it found of each.
	// It waits for an uncommitted copy at most for wait; then its error wraps ErrPending.
	Claim(ctx context.Context, tx *guard.Tx, set []E, wait time.Duration) ([]Found, error)
	// Apply does what a fresh event needs besides being appended. tx is lent for it, and is taken
	// back afterwards unless the error wraps ErrAbandoned.
	Apply(ctx context.Context, tx *guard.Tx, e E) error
	// Aside sets aside what is neither fresh nor a copy. It sets Outcome and Reason, or Err, of
	// each.
	Aside(ctx context.Context, tx *guard.Tx, set []E) error
	// Refuses returns the reason for which an event is parked that alone has caused an error, or ""
	// if the error is none of an event's.
	Refuses(err error) (reason string)
}

// Store stores events from outside before they are acknowledged. It is safe for concurrent use.
type Store[E Entry] struct {
	*Intake
	Way Way[E]
	// Append says that a fresh event is appended to the stream.
	Append bool
	// Ordered says that no event is stored after one of the same set that was not.
	Ordered bool
	// Timeout bounds one transaction.
	Timeout time.Duration
	// Wait is how long one event that is stored alone waits for an uncommitted copy.
	Wait time.Duration
}

// How long a set waits for an uncommitted copy before its events are stored one by one.
const setWait = 50 * time.Millisecond

const maxSetBytes = 8 << 20

var (
	// ErrPending means that an earlier copy of the event is not committed yet.
	ErrPending = errors.New("intake: an earlier copy is not committed yet")
	// ErrBehind means that the event was not tried, because one before it was not stored.
	ErrBehind = errors.New("intake: an event before it was not stored")
)

// Store stores a set, and says in each item what became of it. What it says is committed, unless it
// is an error.
//
// A set is stored in one transaction. If that fails because of one event, or waits for an
// uncommitted copy, each event is stored alone: one holds up no other one (W9, Q4). An event that
// its Way refuses is parked.
func (s *Store[E]) Store(ctx context.Context, set []E) {
	for range s.Each(ctx, set) {
		continue
	}
}

// Each is Store, and yields the events of each transaction as soon as it is known what became of
// them.
func (s *Store[E]) Each(ctx context.Context, set []E) iter.Seq[[]E] {
	return func(yield func([]E) bool) {
		var failed error
		for part := range parts(set) {
			if failed == nil {
				failed = s.storePart(ctx, part)
			} else {
				fail(part, failed)
			}
			if !yield(part) {
				return
			}
		}
	}
}

// fail notes an error of all events.
func fail[E Entry](all []E, err error) {
	for _, e := range all {
		e.Entry().fails(err)
	}
}

// storePart stores one transaction's events. It returns the error of those that come later, if they
// are not to be tried.
func (s *Store[E]) storePart(ctx context.Context, part []E) (later error) {
	for _, e := range part {
		e.Entry().park = nil
	}
	if len(part) > 1 {
		err := s.transact(ctx, part, min(setWait, s.Timeout))
		if err == nil {
			return s.behind(part)
		}
		if !s.aboutOne(err) {
			fail(part, err)
			return err
		}
	}
	for _, e := range part {
		if later != nil {
			e.Entry().fails(later)
			continue
		}
		err := s.storeAlone(ctx, e)
		if err != nil && !s.aboutOne(err) {
			later = err
		} else {
			later = s.behind([]E{e})
		}
	}
	return later
}

// storeAlone stores one event, and parks it if its Way refuses it.
func (s *Store[E]) storeAlone(ctx context.Context, e E) error {
	it := e.Entry()
	for {
		err := s.transact(ctx, []E{e}, s.Wait)
		if err == nil {
			return nil
		}
		reason := s.Way.Refuses(err)
		if reason == "" || it.park != nil {
			it.fails(err)
			return err
		}
		it.park = err
		it.Reason = reason
	}
}

// behind returns ErrBehind if the events after these are not to be stored.
func (s *Store[E]) behind(part []E) error {
	if s.Ordered && slices.ContainsFunc(part, func(e E) bool { return e.Entry().Err != nil }) {
		return ErrBehind
	}
	return nil
}

// aboutOne reports whether the error of a set may be of one event alone.
func (s *Store[E]) aboutOne(err error) bool {
	return errors.Is(err, ErrPending) || errors.Is(err, ErrOne) || s.Way.Refuses(err) != ""
}

// ErrOne is wrapped by an error of a Way that is of one event, which stays with its sender.
var ErrOne = errors.New("intake: of one event")

// transact is the storing transaction.
func (s *Store[E]) transact(ctx context.Context, set []E, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	for _, e := range set {
		e.Entry().tried = false
	}
	end := s.Run(ctx, func(ctx context.Context, tx *guard.Tx) (bool, error) {
		return s.fill(ctx, tx, set, wait)
	})
	fresh := false
	for _, e := range set {
		it := e.Entry()
		it.Lost = end.Lost
		if end.Unknown && it.tried && it.Outcome == Copied {
			it.Outcome = Taken // by our own transaction, as far as can be known
		}
		fresh = fresh || it.Outcome == Taken
		if end.Err == nil && it.Outcome == Parked {
			s.logParked(it)
		}
	}
	if end.Err == nil && fresh && s.Append {
		s.stream.Committed()
	}
	return end.Err
}

// logParked reports to an operator an event that was accepted from its sender and that nobody
// handles: one line for each row.
func (s *Store[E]) logParked(it *Item) {
	s.Logger.Warn("onlyonce: event parked, see onlyonce parked list -kind event", "scope", s.Scope, "topic", s.Topic,
		"reason", it.Reason, "error", it.why)
}

// fill does everything before COMMIT: it claims, and appends or parks. commit is false if there is
// nothing to commit (W8, Q1, Q2).
func (s *Store[E]) fill(ctx context.Context, tx *guard.Tx, set []E, wait time.Duration) (commit bool, err error) {
	found, err := s.Way.Claim(ctx, tx, set, wait)
	if err != nil {
		return false, err
	}
	var aside []E
	for i, e := range set {
		it := e.Entry()
		it.Found = found[i]
		it.Err = nil
		switch it.Found {
		case Fresh:
			err = s.take(ctx, tx, e)
		case Known:
			it.Outcome = Copied
		default:
			it.Outcome = 0
			aside = append(aside, e)
		}
		if err != nil {
			return false, err
		}
	}
	if len(aside) > 0 {
		if err := s.Way.Aside(ctx, tx, aside); err != nil {
			return false, err
		}
	}
	if failed := tx.Failure(); failed != nil {
		return false, failed
	}
	return slices.ContainsFunc(set, func(e E) bool { return e.Entry().hasRows() }), nil
}

// hasRows reports whether there is something to commit of the event.
func (it *Item) hasRows() bool {
	return it.Outcome == Taken || it.Outcome == Parked || it.Noted
}

// take applies a fresh event and appends it, or parks it if its Way has refused it.
func (s *Store[E]) take(ctx context.Context, tx *guard.Tx, e E) error {
	it := e.Entry()
	if why := it.park; why != nil { // an operator may redrive it: its copies are copies
		s.Park(tx, &it.Event, it.Reason, why)
		it.ParkedAs(it.Reason, why)
		return nil //nolint:nilerr // why it is parked is no error of this transaction
	}
	tx.Lend(it.Origin)
	err := s.Way.Apply(ctx, tx, e)
	if errors.Is(err, ErrAbandoned) {
		return err // from here on the handler owns tx
	}
	if err == nil && s.Append {
		err = s.append(ctx, tx, &it.Event)
	}
	tx.TakeBack()
	if failed := tx.Failure(); err == nil && failed != nil {
		err = failed
	}
	it.Outcome = Taken
	it.tried = true
	return err
}

// parts divides a set into those of one transaction each: within the bound of bytes, and without
// two events of one body.
func parts[E Entry](set []E) iter.Seq[[]E] {
	return func(yield func([]E) bool) {
		for len(set) > 0 {
			n := 0
			size := 0
			digests := map[string]bool{}
			for n < len(set) {
				it := set[n].Entry()
				size += len(it.Body)
				same := it.Digest != nil && digests[string(it.Digest)]
				if n > 0 && (size > maxSetBytes || same) {
					break
				}
				digests[string(it.Digest)] = true
				n++
			}
			if !yield(set[:n]) {
				return
			}
			set = set[n:]
		}
	}
}

// Unstorable reports whether the server says that it will never take the data: classes data
// exception, integrity constraint violation, program limit exceeded, and error of PL/pgSQL, whose
// RAISE EXCEPTION is P0001.
func Unstorable(err error) bool {
	state := guard.SQLState(err)
	return len(state) == 5 && slices.Contains([]string{"22", "23", "54", "P0"}, state[:2])
}

// RefusesUnstorable is Way.Refuses of a way whose transactions have only our own statements (Q4).
func RefusesUnstorable(err error) (reason string) {
	if Unstorable(err) {
		return parked.Permanent
	}
	return ""
}
