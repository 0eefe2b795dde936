package ops

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// DB begins transactions: a *pgxpool.Pool, a *pgxpool.Conn or a *pgx.Conn.
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// By says who decides, and why. Both go into the audit row.
type By struct {
	// Actor names the deciding person or program. Defaults to the role of the connection.
	Actor string

	// Reason is the reason, for example a ticket's number. Required, unless this is a dry run.
	Reason string

	// DryRun computes and returns the change, and does not write it. Defaults to false.
	DryRun bool
}

// Audited is a part of each result of a decision.
type Audited struct {
	// AuditID is the id of the row of onlyonce.audit. 0 after a dry run.
	AuditID int64 `json:"-" db:"-"`
}

// AuditRow returns AuditID.
func (a *Audited) AuditRow() int64 { return a.AuditID }

func (a *Audited) audited(id int64) { a.AuditID = id }

// Kinds of [Error].
var (
	// ErrInvalid: the input is invalid for every database.
	ErrInvalid = errors.New("ops: invalid input")

	// ErrNotFound: the database does not have the cursor, row, sink or key.
	ErrNotFound = errors.New("ops: not found")

	// ErrRefused: the decision would lose or repeat work, or break a guarantee.
	ErrRefused = errors.New("ops: refused")

	// ErrNothing: the decision is already in force.
	ErrNothing = errors.New("ops: nothing to do")

	// ErrChanged: the subject of the decision has changed since it was shown.
	ErrChanged = errors.New("ops: changed meanwhile")

	// ErrOutcomeUnknown: COMMIT got no answer: the decision may or may not be in force.
	ErrOutcomeUnknown = errors.New("ops: outcome unknown")
)

// Error is an error that a person can act on.
type Error struct {
	// Kind is one of ErrInvalid, ErrNotFound, ErrRefused, ErrNothing, ErrChanged,
	// ErrOutcomeUnknown.
	Kind error

	// Reason describes the situation.
	Reason string

	// Remedy describes the action to take. It may be empty.
	Remedy string

	// Cause is the underlying error, or nil.
	Cause error
}

// Error returns the reason, the remedy and the cause.
func (e *Error) Error() string {
	s := e.Reason
	if e.Remedy != "" {
		s += ": " + e.Remedy
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

func failf(kind error, format string, args ...any) *Error {
	return &Error{Kind: kind, Reason: fmt.Sprintf(format, args...)}
}

// but adds a remedy.
func (e *Error) but(format string, args ...any) *Error {
	e.Remedy = fmt.Sprintf(format, args...)
	return e
}

// checkText refuses text that is empty or that no database could hold.
func checkText(name, s string) error {
	switch {
	case strings.TrimSpace(s) == "":
		return failf(ErrInvalid, "%s must not be empty", name)
	case !utf8.ValidString(s):
		return failf(ErrInvalid, "%s must be valid UTF-8", name)
	case strings.ContainsRune(s, 0):
		return failf(ErrInvalid, "%s must not hold a zero byte", name)
	}
	return nil
}
