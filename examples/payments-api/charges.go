package payments

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	mathrand "math/rand/v2"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/outbox"
)

// charge is a charge as the API shows it: the fields of Stripe's charges that have a meaning here.
type charge struct {
	ID             string            `json:"id"`
	Object         string            `json:"object"`
	Amount         int64             `json:"amount"`
	AmountCaptured int64             `json:"amount_captured"`
	AmountRefunded int64             `json:"amount_refunded"`
	Captured       bool              `json:"captured"`
	Created        int64             `json:"created"`
	Currency       string            `json:"currency"`
	Metadata       map[string]string `json:"metadata"`
	Paid           bool              `json:"paid"`
	Status         string            `json:"status"`
}

const (
	// declinedSource is a card that is never charged.
	declinedSource = "tok_chargeDeclined"
	// unsteadySource is a card whose issuer is away every other time.
	unsteadySource = "tok_issuerUnsteady"
)

// insertChargeSQL writes a charge and returns a row of chargeColumns.
const insertChargeSQL = `
insert into onlyonce_payments.charges (
  id,
  account,
  reference,
  amount,
  currency,
  at_once,
  captured
) values (
  $1,
  $2,
  $3,
  $4,
  $5,
  $6,
  $7
)
returning ` + chargeColumns

// chargeColumns is what scanCharge reads: id, amount, captured, refunded, created, currency,
// reference.
const chargeColumns = `
id,
amount,
captured,
refunded,
extract(epoch from created_at)::bigint,
currency,
reference`

func scanCharge(row pgx.Row) (*charge, error) {
	c := &charge{Object: "charge", Paid: true, Status: "succeeded"}
	var reference string
	if err := row.Scan(&c.ID, &c.Amount, &c.AmountCaptured, &c.AmountRefunded, &c.Created, &c.Currency, &reference); err != nil {
		return nil, err
	}
	c.Captured = c.AmountCaptured > 0
	c.Metadata = map[string]string{"reference": reference}
	return c, nil
}

// charge authorises a payment, and captures it unless capture is false. The row, the call to the
// provider and the answer commit together.
func (a *API) charge(r *http.Request, in *params) (*answer, error) {
	amount := in.amount("amount")
	currency := in.text("currency")
	source := in.text("source")
	atOnce := in.optionalBool("capture", true)
	captured := amount
	if !atOnce {
		captured = 0
	}
	if err := in.fault(); err != nil {
		return nil, err
	}
	tx, err := idempotency.TxOf(r)
	if err != nil {
		return nil, err
	}
	c, err := scanCharge(tx.QueryRow(
		r.Context(),
		insertChargeSQL,
		newID("ch"),
		in.account,
		in.reference,
		amount,
		strings.ToLower(currency),
		atOnce,
		captured,
	))
	if err != nil {
		return nil, constraintProblem(err)
	}
	if source == declinedSource {
		return nil, newProblem(http.StatusPaymentRequired, "card-declined", "the card was declined") // final: stored, and the row is undone
	}
	if source == unsteadySource && mathrand.IntN(2) == 0 {
		// The same status, and not final: nothing is stored, the row is undone, and the next
		// request under the key runs again.
		idempotency.Transient(r)
		p := newProblem(http.StatusPaymentRequired, "issuer-away", "the card's issuer does not answer at the moment")
		p.Retryable = true
		return nil, p
	}
	if err := a.enqueue(r.Context(), tx, "charge", c.ID, in.reference, amount); err != nil {
		return nil, err
	}
	return &answer{status: http.StatusCreated, location: "/v1/charges/" + c.ID, object: c}, nil
}

// showChargeSQL returns the account's charge. $1 id, $2 account. By the primary key.
const showChargeSQL = `select ` + chargeColumns + ` from onlyonce_payments.charges where id = $1 and account = $2`

func (a *API) showCharge(r *http.Request, in *params) (*answer, error) {
	if !storable(r.PathValue("id")) {
		return nil, notFoundProblem(pgx.ErrNoRows)
	}
	c, err := scanCharge(a.pool.QueryRow(r.Context(), showChargeSQL, r.PathValue("id"), in.account))
	if err != nil {
		return nil, notFoundProblem(err)
	}
	return &answer{status: http.StatusOK, object: c}, nil
}

// captureSQL captures an amount, or the rest. $1 id, $2 account, $3 amount or null. The constraint
// captured_within_amount makes sure that not more is captured than was authorised, also by two
// captures at once: the update waits for the other one's row lock.
const captureSQL = `
update onlyonce_payments.charges set captured = captured + coalesce($3, amount - captured)
 where id = $1 and account = $2
returning ` + chargeColumns

// insertCaptureSQL inserts a capture. Its amount is the charge's captured sum minus that of its
// captures so far.
const insertCaptureSQL = `
insert into onlyonce_payments.captures (
  id,
  charge,
  account,
  reference,
  amount
) values (
  $1,
  $2,
  $3,
  $4,
  $5
)`

func (a *API) capture(r *http.Request, in *params) (*answer, error) {
	amount := in.optionalAmount("amount")
	if err := in.fault(); err != nil {
		return nil, err
	}
	if !storable(r.PathValue("id")) {
		return nil, notFoundProblem(pgx.ErrNoRows)
	}
	tx, err := idempotency.TxOf(r)
	if err != nil {
		return nil, err
	}
	before, err := scanCharge(tx.QueryRow(r.Context(), showChargeSQL+" for update", r.PathValue("id"), in.account))
	if err != nil {
		return nil, notFoundProblem(err)
	}
	c, err := scanCharge(tx.QueryRow(r.Context(), captureSQL, before.ID, in.account, amount))
	if err != nil {
		return nil, constraintProblem(err)
	}
	taken := c.AmountCaptured - before.AmountCaptured
	if _, err := tx.Exec(r.Context(), insertCaptureSQL, newID("ca"), c.ID, in.account, in.reference, taken); err != nil {
		return nil, constraintProblem(err)
	}
	if err := a.enqueue(r.Context(), tx, "capture", c.ID, in.reference, taken); err != nil {
		return nil, err
	}
	return &answer{status: http.StatusOK, object: c}, nil
}

// instruction is the body of a call to the provider: about a charge, or to pay out to a
// destination.
type instruction struct {
	Charge      string `json:"charge,omitempty"`
	Destination string `json:"destination,omitempty"`
	Reference   string `json:"reference"`
	Amount      int64  `json:"amount"`
}

// enqueue enqueues a call to the provider that commits with the transaction. Its key is derived
// from the request's. Calls about one charge are sent in the order of their commits.
func (a *API) enqueue(ctx context.Context, tx consumer.Tx, name, charge, reference string, amount int64) error {
	body, err := json.Marshal(instruction{Charge: charge, Reference: reference, Amount: amount})
	if err != nil {
		return err
	}
	return outbox.Enqueue(ctx, tx, outbox.Call{Sink: a.cfg.Sink, Name: name, OrderingKey: charge, Target: "/" + name + "s",
		Header: http.Header{"Content-Type": {"application/json"}}, Body: body})
}

func newID(kind string) string { return kind + "_" + strings.ToLower(rand.Text()) }

// notFoundProblem is the answer to a look-up that finds nothing. Another account's charge is not
// found.
func notFoundProblem(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return newProblem(http.StatusNotFound, "charge-not-found", "there is no such charge")
	}
	return err
}

// SQLSTATEs of a broken constraint.
const (
	uniqueViolation     = "23505"
	checkViolation      = "23514"
	foreignKeyViolation = "23503"
)

// referenceUsed reports whether a row with this reference is there already.
func referenceUsed(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == uniqueViolation
}

// constraintProblem turns a broken constraint into the client's answer. It is final: it is stored,
// and the rest of the transaction is undone.
func constraintProblem(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return notFoundProblem(err)
	}
	switch pg.Code {
	case uniqueViolation:
		return newProblem(http.StatusUnprocessableEntity, "reference-used",
			"there is one with this reference already, which was asked for under another key")
	case checkViolation, foreignKeyViolation:
	default:
		return err
	}
	switch pg.ConstraintName {
	case "captured_within_amount", "capture_positive":
		return newProblem(http.StatusUnprocessableEntity, "capture-too-large", "no more can be captured than was authorised")
	case "refunded_within_captured", "refund_positive":
		return newProblem(http.StatusUnprocessableEntity, "refund-too-large", "no more can be refunded than was captured")
	}
	return newProblem(http.StatusUnprocessableEntity, "invalid", "the request breaks the rule %s", pg.ConstraintName)
}
