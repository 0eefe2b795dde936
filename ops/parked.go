package ops

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/reports"
)

// ParkedFilter picks parked rows, oldest first. An empty field picks any. ID, Scope or, for calls,
// Sink is required.
type ParkedFilter struct {
	// ID picks one row. Of the other fields only Kind may be set with it.
	ID int64

	// Kind is message, call or event. With an ID it defaults to the kind of that row, otherwise to
	// message.
	Kind string

	// Scope, Topic and Partition pick messages and events; Scope also picks calls. Partition needs
	// Topic.
	Scope     string
	Topic     string
	Partition *int32

	// Sink and Name pick calls. State is waiting, retrying, blocked or reconcile.
	Sink  string
	Name  string
	State string

	// Reason is why the row was parked. Rows of reason conflict are picked
	// only by this field or by ID.
	Reason string

	// ErrorPrefix is the beginning of the error.
	ErrorPrefix string

	// Limit is how many rows are picked at most, up to 10,000. Defaults to 100.
	Limit int64
}

// ParkedRow is a message, call or event that was set aside. A nil pointer means: not known, or
// none.
type ParkedRow struct {
	ID     int64  `json:"id"`
	Kind   string `json:"kind" doc:"message, call or event"`
	State  string `json:"state" doc:"waiting, retrying, blocked, reconcile, resolved or discarded"`
	Reason string `json:"reason"`
	Scope  string `json:"scope"`
	Tenant string `json:"tenant"`

	// Topic, Partition and Offset are a message's or an event's, Sink and Name a call's.
	Topic     *string `json:"topic"`
	Partition *int32  `json:"partition"`
	Offset    *int64  `json:"offset"`
	Sink      *string `json:"sink"`
	Name      *string `json:"name"`
	Key       *string `json:"key" doc:"as stored, a UUID"`
	OrderKey  *string `json:"order_key" doc:"the ordering key as stored"`
	Head      *int64  `json:"head" doc:"the first unsettled row of its ordering key, if that is another one"`

	ParkedAt time.Time `json:"parked_at"`
	Attempts int32     `json:"attempts" doc:"since it was parked, or redriven last"`
	// the call is open: an attempt had no final answer, so the remote may have applied it
	MayBeApplied  bool       `json:"may_be_applied" doc:"above"`
	NextAttemptAt *time.Time `json:"next_attempt_at" doc:"in state retrying: when it is due; nil: it waits for a rate"`
	Redrives      int32      `json:"redrives" doc:"how often operators have redriven it"`
	RedrivenAt    *time.Time `json:"redriven_at" doc:"when they did last"`
	SettledAt     *time.Time `json:"settled_at" doc:"when it was resolved or discarded"`
	Error         string     `json:"error" doc:"its first line, at most 1,000 characters"`
}

// ParkedInput is the input of [Redrive] and [Discard].
type ParkedInput struct {
	ParkedFilter

	// All picks all rows that match, up to 100,000, and changes them in transactions of 500 rows,
	// oldest first. Rows that are parked after Shown are left out; rows that have changed since are
	// skipped and counted. One audit row counts the committed rows: so an error, or the end of the
	// process, leaves whole transactions and a true count. ID, Limit and NewKey must not be set.
	// Defaults to false.
	All bool

	// VerifiedApplied resolves open calls in state reconcile or waiting without sending them: a
	// person has verified that the remote has applied them. Defaults to false, which Discard needs.
	VerifiedApplied bool

	// VerifiedNotApplied sends open calls in state reconcile or waiting again: a person has
	// verified that the remote has not applied them. Defaults to false, which Discard needs.
	VerifiedNotApplied bool

	// NewKey sends rejected calls that are not open, or those with VerifiedNotApplied, under new
	// keys. The remote takes them for other calls. Defaults to false, which Discard needs.
	NewKey bool

	// Shown is the result of a dry run with the same input that a person agreed to: exactly its
	// rows are changed. If one of them has changed since, the error is of kind ErrChanged, unless
	// All is set.
	Shown *ParkedChange

	// Progress is called with All after each transaction, with the result so far. If it returns
	// false, the decision ends there. Defaults to none.
	Progress func(ParkedChange) bool
}

// Check returns an error of kind ErrInvalid unless the fields go together.
func (in *ParkedInput) Check() error { return in.selection().check() }

func (in *ParkedInput) selection() *selection {
	return &selection{ParkedInput: *in, ids: in.Shown.ids()}
}

// ParkedChange is the result of [Redrive] or [Discard].
type ParkedChange struct {
	Audited

	Filter map[string]any `json:"filter" doc:"the selection"`
	// rows that are changed; with All rows that match, or matched when they were shown
	Count   int   `json:"count" doc:"above"`
	UpTo    int64 `json:"up_to,omitempty" doc:"with All: the greatest id of those"`
	Changed int   `json:"changed,omitempty" doc:"with All: rows that were changed"`
	Skipped int   `json:"skipped,omitempty" doc:"rows that had changed since they were shown"`
	// with All: Progress or an error ended it before all were changed
	Stopped bool          `json:"stopped,omitempty" doc:"above"`
	IDs     []int64       `json:"ids,omitempty" doc:"of the rows that are changed"`
	GivenUp []ParkedRow   `json:"rows,omitempty" doc:"those rows, of Discard"`
	Keys    []RekeyedCall `json:"keys,omitempty" doc:"with NewKey"`

	Rows       []ParkedRow `json:"-"` // as they were before; with All the first 5
	More       bool        `json:"-"` // the limit was reached
	Promoted   int64       `json:"-"` // rows blocked behind them that are due now
	Unpromoted error       `json:"-"` // why such rows are tried only after some minutes; nil if they are due now
}

// RekeyedCall is the key that a call got in place of its old one.
type RekeyedCall struct {
	ID     int64  `json:"id"`
	OldKey string `json:"old_key"`
	NewKey string `json:"new_key"`
}

func (b *ParkedChange) ids() []int64 {
	if b == nil || len(b.IDs) == 0 { // nothing was shown, or All
		return nil
	}
	return append([]int64{}, b.IDs...)
}

var (
	redriving  = kind{action: "parked redrive", subject: "one of the rows", look: "onlyonce parked list"}
	discarding = kind{action: "parked discard", subject: "one of the rows", look: "onlyonce parked list"}
)

// Redrive makes parked rows due at once, with as many attempts as a new one has. The consumer of
// their scope, or the relay of their sink, tries them within two seconds.
//
// A message is applied at most once, at its position and under its id, so calls that it enqueues
// keep their keys. Order within an ordering key is kept: a row behind another unsettled one of its
// key is blocked, and becomes due when that one is settled. A blocked row cannot be redriven. A row
// that is already being retried becomes due now if its ID is given. An event that an endpoint has
// set aside is appended to its stream. A call is sent again under its key. If it is open and its
// key's window has passed by then, it goes to reconcile instead. One in state reconcile needs
// VerifiedApplied or VerifiedNotApplied, because it may have been applied.
//
// Errors are of kind ErrInvalid for fields that do not go together, ErrNotFound if there is no row
// with the ID, ErrRefused if no row that the filter picks can be redriven, and ErrChanged. It waits
// for running attempts at these rows, and decides afterwards. If VerifiedApplied settles a row, the
// next rows of its ordering key become due after the commit, in transactions of their own.
func Redrive(ctx context.Context, db DB, by By, in ParkedInput) (*ParkedChange, error) {
	return in.decide(ctx, db, redriving, by, in.selection())
}

// Discard gives up parked rows: messages and events are never applied, and calls not sent. The rows
// stay, with their contents. The id of a message stays claimed, so later copies are duplicates. An
// operation of the HTTP layer whose work is given up has failed. The next rows of the same ordering
// key, which were blocked, become due after the commit, in transactions of their own.
//
// It waits for a running attempt at one of the rows, and does not discard a row that the attempt
// applies. It does not stop a running call, which may still be applied.
//
// Errors are of kind ErrInvalid for fields that do not go together, ErrNotFound if there is no row
// with the ID, ErrRefused if no row that the filter picks can be discarded, and ErrChanged.
func Discard(ctx context.Context, db DB, by By, in ParkedInput) (*ParkedChange, error) {
	q := in.selection()
	if q.asserts() {
		return nil, failf(ErrInvalid, "`VerifiedApplied`, `VerifiedNotApplied` and `NewKey` do not go with a discard")
	}
	q.discard = true
	return in.decide(ctx, db, discarding, by, q)
}

func (in *ParkedInput) decide(ctx context.Context, db DB, k kind, by By, q *selection) (*ParkedChange, error) {
	if in.All {
		return q.all(ctx, db, k, by)
	}
	return settle(ctx, db, k, by, q)
}

// settling is a [selection], or a chunk of one.
type settling interface {
	decision[ParkedChange]
	chosen() *selection
}

func settle(ctx context.Context, db DB, k kind, by By, d settling) (*ParkedChange, error) {
	q := d.chosen()
	done, err := decide(ctx, db, k, by, d, q.Shown)
	if err == nil && !by.DryRun {
		// Rows that were settled have blocked others, and rows that were redriven may be blocked by
		// what is settled meanwhile. If this fails, nothing is lost: at its start and every few
		// minutes, each consumer looks for keys that are blocked although no row is ahead of them.
		done.Promoted, done.Unpromoted = promote(ctx, db, done.Rows)
	}
	return done, err
}

// promote makes due the rows that are blocked by no unsettled row, of the ordering keys of these
// rows. It runs after the commit that settled or redrove them, in transactions of its own: before
// that, no transaction can see a message that was parked meanwhile with the same ordering key.
func promote(ctx context.Context, db DB, rows []ParkedRow) (promoted int64, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), decideTimeout)
	defer cancel()
	keys := map[string]bool{}
	for _, r := range rows {
		if r.OrderKey != nil {
			keys[*r.OrderKey] = true
		}
	}
	for key := range keys {
		var due int64
		err := pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			if err := reports.Bound(ctx, reports.Unprepared{Tx: tx}); err != nil {
				return err
			}
			return reports.Unprepared{Tx: tx}.QueryRow(ctx, parked.PromoteSQL, []string{key}).Scan(&due)
		})
		if err != nil {
			return promoted, err
		}
		promoted += due
	}
	return promoted, nil
}
